// From one span to those around it, by the arrow keys.

import type { Lanes } from "./lanes";
import type { State } from "./state";

export type Way = "parent" | "child" | "previous" | "next";

/** The span in that direction; -1 if there is none. */
export function neighbour(state: State, lanes: Lanes, way: Way): number {
    const { trace, selected: span } = state;
    if (way === "parent") return trace.parent[span]!;
    if (way === "child") return trace.childrenOf(span)[0] ?? -1;
    const by = way === "next" ? 1 : -1;
    const siblings = trace.parent[span]! < 0 ? null : trace.childrenOf(trace.parent[span]!);
    const sibling = siblings?.[siblings.indexOf(span) + by];
    if (sibling !== undefined) return sibling;
    // At the end of the siblings: what comes next in the row.
    const row = lanes.all[trace.process[span]!]!.rows[trace.row[span]!]!.spans;
    return row[row.indexOf(span) + by] ?? -1;
}
