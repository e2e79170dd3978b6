// What the panel of details says while no span is selected.

import { UNNAMED } from "./collective";
import { button, make } from "./dom";
import { bytes, count, duration, plural } from "./format";
import { COLLECTIVE } from "./kinds";
import type { State } from "./state";

const SHOWN_STEPS = 5;
const SHOWN_ERRORS = 20;

/** The slowest steps, errors, collectives, and how to go on. */
export function overview(state: State, go: (span: number) => void): Node[] {
    return [
        make("p", { class: "hint" }, "Click a span, or press an arrow key in the timeline."),
        make(
            "p",
            { class: "hint" },
            "Wheel zooms, drag pans, shift and wheel scroll, ? lists the keys.",
        ),
        ...section(state.trace.hasSteps ? "Slowest steps" : "Slowest traces", slowest(state, go)),
        ...section("Errors", errors(state, go)),
        ...section("Collectives", collectives(state)),
    ];
}

function section(name: string, content: HTMLElement): Node[] {
    return content.hasChildNodes() ? [make("section", {}, make("h3", {}, name), content)] : [];
}

function line(text: string, value: string, act: () => void): HTMLElement {
    return make("li", {}, button(text, act), make("span", { class: "number" }, value));
}

function slowest(state: State, go: (span: number) => void): HTMLElement {
    const { trace } = state;
    const list = make("ul", { class: "links short" });
    const periods = [...trace.periods].sort((one, other) => other.duration - one.duration);
    const what = trace.hasSteps ? "step" : "trace";
    for (const period of periods.slice(0, SHOWN_STEPS)) {
        const text = `${what} ${period.label}`;
        list.append(line(text, duration(period.duration), () => go(period.spans[0]!)));
    }
    const middle = periods[periods.length >> 1];
    if (periods.length > SHOWN_STEPS && middle !== undefined) {
        const value = make("span", { class: "number" }, duration(middle.duration));
        list.append(make("li", {}, make("span", { class: "how" }, "median"), value));
    }
    return list;
}

function errors(state: State, go: (span: number) => void): HTMLElement {
    const { trace } = state;
    const list = make("ul", { class: "links short" });
    let failed = 0;
    for (let span = 0; span < trace.count; span++) {
        if (!trace.failed[span]) continue;
        if (failed < SHOWN_ERRORS) {
            list.append(
                line(`! ${trace.labelOf(span)}`, `at ${duration(trace.start[span]!)}`, () =>
                    go(span),
                ),
            );
        }
        failed++;
    }
    const hidden = failed - SHOWN_ERRORS;
    if (hidden > 0) list.append(make("li", {}, `and ${plural(hidden, "more error")}`));
    return list;
}

function collectives(state: State): HTMLElement {
    const { trace } = state;
    const sums = new Map<string, { launches: number; size: number }>();
    for (let event = 0; event < trace.eventKind.length; event++) {
        if (trace.eventKind[event] !== COLLECTIVE) continue;
        const attributes = trace.eventAttributes(event);
        const get = (name: string) => attributes[`modtrack.collective.${name}`];
        const group = String(get("group.description") ?? "");
        const operation = String(get("operation") ?? "collective");
        const key = UNNAMED.includes(group) ? operation : `${operation} (${group})`;
        const sum = sums.get(key) ?? { launches: 0, size: 0 };
        sum.launches += Number(get("count") ?? 1);
        sum.size += Number(get("size") ?? 0);
        sums.set(key, sum);
    }
    const list = make("dl");
    for (const [key, { launches, size }] of [...sums].sort(([, a], [, b]) => b.size - a.size)) {
        list.append(make("dt", {}, key), make("dd", {}, `${count(launches)}, ${bytes(size)}`));
    }
    return list;
}
