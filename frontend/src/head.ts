// What the page is of.

import { button, get, make } from "./dom";
import { count, duration, plural } from "./format";
import { KINDS, OTHER, STEP } from "./kinds";
import type { State } from "./state";

/** Fill the head. `showFailed` goes to the next span that failed. */
export function showHead(state: State, showFailed: () => void): void {
    const { trace } = state;
    get("service").textContent = trace.title;
    get("version").textContent = trace.version;
    const told = trace.processes.flatMap(({ rank }) => (rank === null ? [] : [rank]));
    const ranks = new Set(told).size;
    const others = trace.processes.length - told.length;
    const facts = [
        ranks ? plural(ranks, "rank") : "",
        others ? (others === 1 ? "1 process" : `${count(others)} processes`) : "",
        plural(trace.periods.length, trace.hasSteps ? "step" : "trace"),
        plural(trace.count, "span"),
        duration(trace.length),
    ];
    get("facts").textContent = facts.filter(Boolean).join(" · ");
    const failed = trace.failed.reduce((sum, flag) => sum + flag, 0);
    if (failed) {
        const text = `! ${plural(failed, "error")}`;
        get("badges").append(
            button(text, showFailed, { class: "badge", title: "Go to the next (e)" }),
        );
    }
    if (trace.faults.length) {
        const list = make("ul", {}, ...trace.faults.map((fault) => make("li", {}, fault)));
        const summary = make(
            "summary",
            { class: "badge" },
            `⚠ ${plural(trace.faults.length, "fault")} while reading`,
        );
        get("badges").append(make("details", { id: "faults" }, summary, list));
    }
    const seen = new Set(trace.kind);
    get("legend").replaceChildren(
        ...KINDS.flatMap((kind, number) =>
            !seen.has(number) || (number === OTHER && seen.size === 1) || number === STEP
                ? []
                : [
                      make(
                          "span",
                          { class: `chip ${kind.word}` },
                          `${kind.letter} ${kind.word}`.trim(),
                      ),
                  ],
        ),
        ...(trace.eventKind.includes(1) ? [make("span", { class: "mark" }, "◆ collective")] : []),
    );
}
