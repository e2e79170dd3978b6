// What is known of the selected span.

import { tellCollective } from "./collective";
import { button, make } from "./dom";
import { duration, plural, share } from "./format";
import { COLLECTIVE, EXCEPTION, KINDS } from "./kinds";
import { overview } from "./overview";
import type { State } from "./state";

const SHOWN_CHILDREN = 30;
const OTLP_KINDS = ["unspecified", "internal", "server", "client", "producer", "consumer"];

/** Fill the panel. `go` is called with a span that is chosen in it. */
export function showDetails(panel: HTMLElement, state: State, go: (span: number) => void): void {
    const { trace, selected } = state;
    if (selected < 0) {
        panel.replaceChildren(...overview(state, go));
        return;
    }
    panel.replaceChildren(
        ...head(state),
        section("Time", table(times(state))),
        section("Related", related(state, go)),
        section("Attributes", table(Object.entries(trace.setOf(selected).attributes))),
        section("Events", events(state)),
        section("Identity", table(identity(state))),
    );
    panel.scrollTop = 0;
}

function head(state: State): Node[] {
    const { trace, selected: span } = state;
    const kind = KINDS[trace.kind[span]!]!;
    const chip = make("span", { class: `chip ${kind.word}` }, `${kind.letter} ${kind.word}`.trim());
    const nodes: Node[] = [make("h2", {}, chip, " ", title(state, span))];
    if (trace.failed[span]) {
        nodes.push(
            make("p", { class: "failed" }, `! ${trace.messageOf(span) || "This span failed."}`),
        );
    }
    return nodes;
}

function title(state: State, span: number): string {
    const { trace } = state;
    return trace.isModule(span) ? trace.fqnOf(span) : trace.labelOf(span);
}

function times(state: State): [string, unknown][] {
    const { trace, selected: span } = state;
    const whole = trace.duration[span]!;
    const rows: [string, unknown][] = [
        ["duration", duration(whole)],
        ["self", `${duration(trace.self[span]!)}, ${share(trace.self[span]!, whole)}`],
    ];
    const parent = trace.parent[span]!;
    if (parent >= 0) rows.push(["of the parent", share(whole, trace.duration[parent]!)]);
    const outermost = outermostOf(state, span);
    if (outermost >= 0 && outermost !== span) {
        const what = trace.hasSteps ? "step" : "trace";
        rows.push([`of the ${what}`, share(whole, trace.duration[outermost]!)]);
        rows.push([`start in the ${what}`, duration(trace.start[span]! - trace.start[outermost]!)]);
    }
    rows.push(["start", duration(trace.start[span]!)], ["at", trace.clock(trace.start[span]!)]);
    return rows;
}

/** The span of the step, or the root, that a span is in; -1 if there is none. */
function outermostOf(state: State, span: number): number {
    const { trace } = state;
    const period = trace.periods[trace.period[span]!];
    if (period === undefined) return -1;
    let at = span;
    while (at >= 0 && !period.spans.includes(at)) at = trace.parent[at]!;
    return at;
}

function identity(state: State): [string, unknown][] {
    const { trace, selected: span } = state;
    const process = trace.processes[trace.process[span]!]!;
    const { scope, kind } = trace.setOf(span);
    const period = trace.periods[trace.period[span]!];
    const rows: [string, unknown][] = [
        ["name", trace.nameOf(span)],
        ["process", process.label],
        ["service", process.service],
        [trace.hasSteps ? "step" : "trace", period?.label ?? ""],
        ["span id", trace.spanId(span)],
        ["trace id", trace.traceId(span)],
        ["scope", scope],
        ["kind", OTLP_KINDS[kind] ?? String(kind)],
        ["file", process.source],
    ];
    return rows.filter(([, value]) => value !== "");
}

function related(state: State, go: (span: number) => void): Node {
    const { trace, selected: span } = state;
    const list = make("ul", { class: "links" });
    const add = (how: string, to: number) => {
        const failed = trace.failed[to] ? "! " : "";
        const jump = button(`${failed}${trace.labelOf(to)}`, () => go(to));
        const time = make("span", { class: "number" }, duration(trace.duration[to]!));
        list.append(make("li", {}, make("span", { class: "how" }, how), jump, time));
    };
    for (const link of trace.linksOf(span)) {
        if (link.target >= 0) add("links to", link.target);
        else {
            const where = `span ${link.span_id}, not in this file`;
            list.append(make("li", {}, make("span", { class: "how" }, "links to"), where));
        }
    }
    for (const from of trace.linkedFrom(span)) add("linked from", from);
    if (trace.parent[span]! >= 0) add("parent", trace.parent[span]!);
    const children = trace.childrenOf(span);
    for (const child of children.subarray(0, SHOWN_CHILDREN)) add("child", child);
    const more = children.length - SHOWN_CHILDREN;
    if (more > 0)
        list.append(
            make("li", {}, `and ${plural(more, "more child").replace("childs", "children")}`),
        );
    return list;
}

function events(state: State): Node {
    const { trace, selected: span } = state;
    const list = make("ol", { class: "events" });
    for (const event of trace.eventsOf(span)) {
        const kind = trace.eventKind[event]!;
        const attributes = trace.eventAttributes(event);
        const name = trace.strings[trace.eventName[event]!]!;
        const sign = kind === COLLECTIVE ? "◆ " : kind === EXCEPTION ? "! " : "○ ";
        const said = kind === COLLECTIVE ? tellCollective(attributes) : name;
        const after = trace.eventTime[event]! - trace.start[span]!;
        list.append(
            make(
                "li",
                { class: kind === EXCEPTION ? "failed" : "" },
                make(
                    "div",
                    {},
                    `${sign}${said}`,
                    make("span", { class: "number" }, `+${duration(after)}`),
                ),
                table(Object.entries(attributes), "modtrack.collective."),
            ),
        );
    }
    return list;
}

function section(name: string, content: Node): HTMLElement | string {
    if (!content.hasChildNodes()) return "";
    return make("section", {}, make("h3", {}, name), content);
}

/** @param known How names begin that need no telling. */
function table(rows: [string, unknown][], known = "modtrack."): HTMLElement {
    const body = make("dl");
    for (const [name, value] of rows) {
        const short = name.startsWith(known) ? name.slice(known.length) : name;
        body.append(make("dt", { title: name }, short), make("dd", {}, tell(value)));
    }
    return body;
}

function tell(value: unknown): string {
    if (Array.isArray(value)) return value.map(tell).join(", ");
    if (typeof value === "object" && value !== null) return JSON.stringify(value);
    return String(value);
}
