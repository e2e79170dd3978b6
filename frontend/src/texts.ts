// What stands in a block: as much as fits.

import { tellCollective } from "./collective";
import { COLLECTIVE, KINDS, OPTIMIZER, STEP } from "./kinds";
import type { Trace } from "./trace";

/** Narrower blocks have their letter only. */
const ELLIPSIS_WIDTH = 44;

/** Widths of texts, each measured once. */
export class Ruler {
    private readonly known = new Map<string, number>();

    width(ctx: CanvasRenderingContext2D, text: string): number {
        let width = this.known.get(text);
        if (width === undefined) {
            width = ctx.measureText(text).width;
            this.known.set(text, width);
        }
        return width;
    }

    /** The first text that fits; else the last but one to be cut, where that leaves something. */
    choose(ctx: CanvasRenderingContext2D, texts: readonly string[], room: number): string {
        const fitting = texts.find((text) => this.width(ctx, text) <= room);
        if (fitting !== undefined && fitting !== texts.at(-1)) return fitting;
        const cut = texts.at(-2)!;
        const leavesEnough = room >= ELLIPSIS_WIDTH && room > this.width(ctx, cut) / 2;
        return leavesEnough ? cut : texts.at(-1)!;
    }
}

/** Texts for a span, the longest first and a letter last. */
export function textsOf(trace: Trace, span: number): string[] {
    const kind = trace.kind[span]!;
    const { letter } = KINDS[kind]!;
    const short = shortOf(trace, span);
    const named = `${letter} ${short}`.trim();
    const launched = [...trace.eventsOf(span).subarray(0, 3)]
        .filter((event) => trace.eventKind[event] === COLLECTIVE)
        .map((event) => tellCollective(trace.eventAttributes(event)));
    const texts = [named, letter];
    if (launched.length) texts.unshift(`${named}  ${launched.join(", ")}`);
    if (kind === STEP) texts.splice(-1, 0, `${letter} ${short.split(" ").at(-1)}`);
    return texts;
}

/** What tells a span from those around it: `attn` in `GPT.layers.0`, `AdamW`. */
function shortOf(trace: Trace, span: number): string {
    if (trace.kind[span] === OPTIMIZER) return trace.nameOf(span).split(" ").at(-1)!;
    if (!trace.isModule(span)) return trace.labelOf(span);
    let above = trace.parent[span]!;
    while (above >= 0 && !trace.isModule(above)) above = trace.parent[above]!;
    return shorten(trace.fqnOf(span), above < 0 ? "" : trace.fqnOf(above));
}

/** Take the name above off a name, but leave no number alone. */
export function shorten(fqn: string, above: string): string {
    if (above === "" || !fqn.startsWith(`${above}.`)) return fqn;
    const rest = fqn.slice(above.length + 1);
    return /^[\d*]/.test(rest)
        ? fqn
              .split(".")
              .slice(-rest.split(".").length - 1)
              .join(".")
        : rest;
}
