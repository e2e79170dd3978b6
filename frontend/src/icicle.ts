// The call paths, each as wide as the time that it takes.

import { sumPaths, type PathNode } from "./aggregate";
import { Pane, type Point } from "./chart";
import { duration, plural, share } from "./format";
import { KINDS } from "./kinds";
import { BLOCK, PITCH } from "./lanes";
import type { State } from "./state";
import { Ruler, shorten } from "./texts";
import type { Way } from "./walk";

const TOP = 2;
const PADDING = 5;

export class Icicle extends Pane {
    roots: PathNode[] = [];
    whole = 0;
    selected: PathNode | null = null;
    onHover: (node: PathNode | null, at: Point) => void = () => {};
    onSelect: (node: PathNode) => void = () => {};
    private scrollTop = 0;
    private readonly ruler = new Ruler();

    constructor(private readonly state: State) {
        super("icicle");
        this.sum();
    }

    /** Sum up what is in scope anew. */
    sum(): void {
        this.roots = sumPaths(this.state);
        this.whole = this.roots.reduce((sum, node) => sum + node.width, 0);
        this.selected = null;
        this.scrollTop = 0;
        this.min = 0;
        this.max = Math.max(1, this.whole);
    }

    scroll(pixels: number): void {
        this.scrollTop = Math.max(0, Math.min(this.scrollTop + pixels, this.most()));
    }

    click(at: Point): void {
        const node = this.nodeAt(at);
        if (node !== null) this.select(node);
    }

    select(node: PathNode): void {
        this.selected = node;
        const top = node.depth * PITCH;
        const seen = this.renderEngine.height - PITCH - TOP;
        if (top < this.scrollTop) this.scrollTop = top;
        if (top > this.scrollTop + seen) this.scrollTop = top - seen;
        this.onSelect(node);
        this.renderEngine.parent.render();
    }

    hover(at: Point | null): void {
        this.onHover(at === null ? null : this.nodeAt(at), at ?? { x: 0, y: 0 });
    }

    /** Go from the selected block to one beside, above or below it. */
    step(way: Way): void {
        const from = this.selected;
        const first = this.roots[0];
        if (from === null) {
            if (first !== undefined) this.select(first);
            return;
        }
        const siblings = from.parent?.children ?? this.roots;
        const at = siblings.indexOf(from);
        const to = {
            parent: from.parent,
            child: from.children[0],
            previous: siblings[at - 1],
            next: siblings[at + 1],
        }[way];
        if (to) this.select(to);
    }

    tell(node: PathNode): string[] {
        return [
            node.name,
            `${duration(node.total)} in ${plural(node.calls, "call")}, ${share(node.width, this.whole)}`,
            `self ${duration(node.self)}, ${share(node.self, this.whole)}`,
        ];
    }

    draw(): void {
        const { width, height, ctx } = this.renderEngine;
        const waiting = [...this.roots];
        while (waiting.length) {
            const node = waiting.pop()!;
            const x = this.at(node.left);
            const end = this.at(node.left + node.width);
            const y = TOP + node.depth * PITCH - this.scrollTop;
            // What is below is not wider.
            if (end < 0 || x > width || y > height || end - x < 0.5) continue;
            waiting.push(...node.children);
            this.block(node.kind, x, y, Math.max(1, end - x - 1), false);
            const seen = Math.min(end, width) - Math.max(x, 0);
            if (seen < 12) continue;
            const { letter } = KINDS[node.kind]!;
            const named = `${letter} ${shortOf(node)}`.trim();
            const texts = [`${named}  ${share(node.width, this.whole)}`, named, letter];
            const text = this.ruler.choose(ctx, texts, seen - 2 * PADDING - 1);
            this.renderEngine.addText({ text, x, y: y - 1, w: end - x - 1 }, 2);
        }
        this.renderEngine.resolveQueue();
        if (this.selected !== null) {
            const x = this.at(this.selected.left);
            const y = TOP + this.selected.depth * PITCH - this.scrollTop;
            const wide = this.at(this.selected.left + this.selected.width) - x;
            this.frame(x + 1, y + 1, wide - 2, BLOCK - 2);
        }
        ctx.setLineDash([]);
        this.renderEngine.reset();
    }

    /** Where a block is on the canvas. */
    boxOf(node: PathNode): { x: number; y: number; width: number; height: number } {
        const x = this.at(node.left);
        const width = this.at(node.left + node.width) - x;
        return { x, y: TOP + node.depth * PITCH - this.scrollTop, width, height: BLOCK };
    }

    private nodeAt(at: Point): PathNode | null {
        const { zoom, positionX } = this.renderEngine;
        const time = positionX + at.x / zoom;
        const depth = Math.floor((at.y - TOP + this.scrollTop) / PITCH);
        let level = this.roots;
        for (;;) {
            const node = level.find((node) => node.left <= time && time < node.left + node.width);
            if (node === undefined) return null;
            if (node.depth === depth) return node;
            level = node.children;
        }
    }

    private most(): number {
        let deepest = 0;
        const waiting = [...this.roots];
        while (waiting.length) {
            const node = waiting.pop()!;
            deepest = Math.max(deepest, node.depth);
            waiting.push(...node.children);
        }
        return Math.max(0, (deepest + 1) * PITCH + TOP - this.renderEngine.height);
    }
}

/** The name without what the blocks above say already: `attn` in `forward GPT.layers.*`. */
function shortOf(node: PathNode): string {
    const path = pathOf(node);
    if (path === "") return node.name;
    let above = node.parent;
    while (above !== null && pathOf(above) === "") above = above.parent;
    return shorten(path, above === null ? "" : pathOf(above));
}

/** The template, or "" for what is no module. */
function pathOf(node: PathNode): string {
    const prefix = `${KINDS[node.kind]!.word} `;
    return node.name.startsWith(prefix) ? node.name.slice(prefix.length) : "";
}
