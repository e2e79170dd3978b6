// Where the time goes: spans summed up by call path, and by module.

import type { State } from "./state";

/** All calls on one path of names. */
export interface PathNode {
    readonly name: string;
    readonly parent: PathNode | null;
    readonly children: PathNode[];
    readonly depth: number;
    readonly kind: number;
    calls: number;
    self: number;
    total: number;
    /** Own time and the children's: where those overlap, more than the total. */
    width: number;
    left: number;
    /** The longest of the spans. */
    longest: number;
}

/** Sum up what is in scope by call path, largest first. */
export function sumPaths(state: State): PathNode[] {
    const { trace } = state;
    const roots: PathNode[] = [];
    const nodes: PathNode[] = [];
    const known = new Map<number, number>();
    const nodeOf = new Int32Array(trace.count).fill(-1);
    for (const span of trace.walk) {
        if (!state.isInScope(span)) continue;
        const above = trace.parent[span]! < 0 ? -1 : nodeOf[trace.parent[span]!]!;
        const key = (above + 1) * trace.strings.length + trace.name[span]!;
        let index = known.get(key);
        if (index === undefined) {
            index = nodes.length;
            known.set(key, index);
            const parent = above < 0 ? null : nodes[above]!;
            const node: PathNode = {
                name: trace.nameOf(span),
                parent,
                children: [],
                depth: parent === null ? 0 : parent.depth + 1,
                kind: trace.kind[span]!,
                calls: 0,
                self: 0,
                total: 0,
                width: 0,
                left: 0,
                longest: span,
            };
            (parent?.children ?? roots).push(node);
            nodes.push(node);
        }
        nodeOf[span] = index;
        const node = nodes[index]!;
        node.calls++;
        node.self += trace.self[span]!;
        node.total += trace.duration[span]!;
        if (trace.duration[span]! > trace.duration[node.longest]!) node.longest = span;
    }
    for (const node of nodes.reverse()) {
        node.width = node.self + node.children.reduce((sum, child) => sum + child.width, 0);
    }
    place(roots, 0);
    // Parents come last since the order was turned.
    for (const node of nodes.reverse()) place(node.children, node.left);
    return roots;
}

function place(siblings: PathNode[], left: number): void {
    siblings.sort((one, other) => other.width - one.width);
    for (const node of siblings) {
        node.left = left;
        left += node.width;
    }
}

/** All calls of one module in one phase. */
export interface ModuleRow {
    readonly label: string;
    readonly kind: number;
    calls: number;
    self: number;
    /** A module within itself counts once. */
    total: number;
    longest: number;
}

/** Sum up what is in scope by name (the template's) or by fqn. */
export function sumModules(state: State, by: "template" | "fqn"): ModuleRow[] {
    const { trace } = state;
    const strings = trace.strings.length;
    const keyOf = (span: number) =>
        by === "template" ? trace.name[span]! : trace.kind[span]! * strings + trace.fqn[span]!;
    const rows = new Map<number, ModuleRow>();
    // The way down to the span that is looked at, and how many on it are of each row.
    const path: number[] = [];
    const open = new Map<number, number>();
    const count = (span: number, change: number) => {
        if (state.isInScope(span)) open.set(keyOf(span), (open.get(keyOf(span)) ?? 0) + change);
    };
    for (const span of trace.walk) {
        while (path.length && path[path.length - 1] !== trace.parent[span]) count(path.pop()!, -1);
        const key = keyOf(span);
        const isWithin = (open.get(key) ?? 0) > 0;
        path.push(span);
        count(span, 1);
        if (!state.isInScope(span)) continue;
        let row = rows.get(key);
        if (row === undefined) {
            const label = by === "template" ? trace.nameOf(span) : trace.moduleOf(span);
            row = { label, kind: trace.kind[span]!, calls: 0, self: 0, total: 0, longest: span };
            rows.set(key, row);
        }
        row.calls++;
        row.self += trace.self[span]!;
        if (trace.duration[span]! > trace.duration[row.longest]!) row.longest = span;
        if (!isWithin) row.total += trace.duration[span]!;
    }
    return [...rows.values()];
}
