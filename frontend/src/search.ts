// Which spans a query finds.

import type { State } from "./state";

/**
 * Whether a text has the query in it. A glob with *, ? or [ is for the whole text or its last
 * parts, as that of `--module`; in quotes the query is the whole text: `"forward GPT.layers.*"` finds what has that template.
 */
function matcher(query: string): (text: string) => boolean {
    if (isExact(query)) {
        const exact = query.slice(1, -1);
        return (text) => text.replace(/ #\d+$/, "") === exact;
    }
    const wanted = query.toLowerCase();
    if (!/[*?[]/.test(wanted)) return (text) => text.toLowerCase().includes(wanted);
    const source = wanted.replace(/\[!?[^\]]*\]|[^]/g, (part) => {
        if (part === "*") return ".*";
        if (part === "?") return ".";
        if (part.length > 1) return part.replace("[!", "[^").replaceAll("\\", "\\\\");
        return part.replace(/[\\^$.|+(){}[\]/]/, "\\$&");
    });
    let pattern: RegExp;
    try {
        pattern = new RegExp(`^(.*[. ])?${source}$`, "s");
    } catch {
        return () => false; // as [z-a] is
    }
    return (text) => pattern.test(text.toLowerCase());
}

function isExact(query: string): boolean {
    return /^".+"$/.test(query);
}

/** Find spans by fqn, by label (`backward GPT.head`), or in quotes by name. */
export function search(state: State, query: string): void {
    const { trace } = state;
    state.query = query;
    state.foundCount = 0;
    if (query.trim() === "") {
        state.found = null;
    } else {
        const matches = matcher(query.trim());
        const texts = Uint8Array.from(trace.strings, (text) => (matches(text) ? 1 : 0));
        // The * of a template's name is no text that anybody looks for, but as a whole.
        const names = isExact(query.trim()) ? trace.name : trace.label;
        state.found = new Uint8Array(trace.count);
        for (let span = 0; span < trace.count; span++) {
            const isFound =
                texts[trace.fqn[span]!]! | texts[trace.label[span]!]! | texts[names[span]!]!;
            state.found[span] = isFound;
            state.foundCount += isFound;
        }
    }
    state.tell("search");
}

/** The next found span after a span, in order of start and around the end; -1 if there is none. */
export function nextFound(state: State, from: number, way: 1 | -1): number {
    return next(state.found, from, way);
}

/** The next failed span. */
export function nextFailed(state: State, from: number): number {
    return next(state.trace.failed, from, 1);
}

function next(flags: Uint8Array | null, from: number, way: 1 | -1): number {
    if (flags === null) return -1;
    const count = flags.length;
    for (let steps = 1; steps <= count; steps++) {
        const span = (((from + way * steps) % count) + count) % count;
        if (flags[span]) return span;
    }
    return -1;
}

/** Which of the found spans it is, from 1; 0 if it is none. */
export function placeOf(state: State, span: number): number {
    if (span < 0 || !state.found?.[span]) return 0;
    let place = 0;
    for (let at = 0; at <= span; at++) place += state.found[at]!;
    return place;
}
