// What is shown, to be read from outside: by tests, and in the browser's console.

import type { PathNode } from "./aggregate";
import type { App } from "./app";
import type { Box } from "./timeline";

export function publish({ trace, state, timeline, chart, icicle }: App): void {
    const inPage = (box: Box | null, selector: string) => {
        if (box === null) return null;
        const host = document.querySelector(selector)!.getBoundingClientRect();
        return { ...box, x: box.x + host.left, y: box.y + host.top };
    };
    const spanOf = (id: string) => {
        for (let span = 0; span < trace.count; span++) if (trace.spanId(span) === id) return span;
        return -1;
    };
    const paths = () => {
        const found: PathNode[] = [];
        const waiting = [...icicle.roots];
        while (waiting.length) {
            const node = waiting.shift()!;
            found.push(node);
            waiting.push(...node.children);
        }
        return found;
    };
    const api = {
        count: () => trace.count,
        /** ns after the first start. */
        view: () => [...chart.view],
        selected: () => (state.selected < 0 ? null : trace.spanId(state.selected)),
        found: () => state.foundCount,
        scope: () => ({ ...state.scope }),
        theme: () => state.theme,
        scrollTop: () => timeline.scrollTop,
        /** How often the timeline was drawn. */
        frames: () => timeline.frames,
        /** Where a span is in the page, in pixels. */
        boxOf: (id: string) => {
            const span = spanOf(id);
            return span < 0 ? null : inPage(timeline.boxOf(span), "#timeline");
        },
        rowOf: (id: string) => trace.row[spanOf(id)],
        selfOf: (id: string) => trace.self[spanOf(id)],
        icicle: () =>
            paths().map((node) => ({
                name: node.name,
                depth: node.depth,
                calls: node.calls,
                self: node.self,
                total: node.total,
                box: inPage(icicle.boxOf(node), "#icicle"),
            })),
    };
    Object.defineProperty(window, "modtrack", { value: Object.freeze(api) });
}
