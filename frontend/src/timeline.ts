// The spans of all processes over time.

import { Pane, type Point } from "./chart";
import { ticks } from "./format";
import { COLLECTIVE, EXCEPTION, INK } from "./kinds";
import { BLOCK, HEADER, Lanes, PITCH, rowsShown, type Row } from "./lanes";
import { forEachPiece, type Piece } from "./row";
import type { Spot } from "./spot";
import type { State } from "./state";
import { Ruler, textsOf } from "./texts";
import { FONT } from "./theme";

export const AXIS = 24;
const LETTER_WIDTH = 12;
const PADDING = 5;
/** A text is kept off marks in its first part. */
const TEXT_WIDTH = 90;
const MARK = 5;
/** Marks nearer to each other are ticks. */
const DENSE = 11;

export interface Box {
    readonly x: number;
    readonly y: number;
    readonly width: number;
    readonly height: number;
}

export class Timeline extends Pane {
    readonly lanes: Lanes;
    private readonly ruler = new Ruler();
    scrollTop = 0;
    frames = 0;
    onHover: (spot: Spot | null) => void = () => {};
    onScroll: () => void = () => {};

    constructor(private readonly state: State) {
        super("timeline");
        this.lanes = new Lanes(state.trace);
        const margin = Math.max(state.trace.length * 0.01, 1);
        this.min = -margin;
        this.max = state.trace.length + margin;
    }

    /** Where a span is on the canvas; null where its lane is folded. */
    boxOf(span: number): Box | null {
        if (!this.lanes.isShown(span)) return null;
        const x = this.at(this.state.trace.start[span]!);
        const width = this.at(this.state.trace.end[span]!) - x;
        return { x, y: this.lanes.topOf(span) - this.scrollTop + AXIS, width, height: BLOCK };
    }

    /** Scroll so that a lane's or span's top, of that height, is seen. */
    reveal(top: number, height: number): void {
        const seen = this.renderEngine.height - AXIS;
        if (top < this.scrollTop) this.scrollTo(top - HEADER);
        else if (top + height > this.scrollTop + seen) this.scrollTo(top + height + PITCH - seen);
    }

    scroll(pixels: number): void {
        this.scrollTo(this.scrollTop + pixels);
    }

    scrollTo(top: number): void {
        const most = this.lanes.height - (this.renderEngine.height - AXIS);
        this.scrollTop = Math.max(0, Math.min(top, most));
        this.onScroll();
    }

    click(at: Point): void {
        const spot = this.spotAt(at);
        this.state.select(spot?.span ?? -1);
    }

    hover(at: Point | null): void {
        this.onHover(at === null ? null : this.spotAt(at));
    }

    private spotAt(at: Point): Spot | null {
        if (at.y < AXIS) return null;
        const row = this.lanes.rowAt(at.y - AXIS + this.scrollTop);
        if (row === undefined) return null;
        const { zoom, positionX } = this.renderEngine;
        const time = positionX + at.x / zoom;
        const event = this.lanes.eventAt(row, time, MARK / zoom);
        const span =
            event >= 0
                ? this.state.trace.eventSpan[event]!
                : this.lanes.spanAt(row, time, 2 / zoom);
        return span < 0 ? null : { span, event, at };
    }

    draw(): void {
        this.frames++;
        const { ctx, width, height } = this.renderEngine;
        const marks: [Row, number][] = [];
        const signs: [Piece, number][] = [];
        this.drawGrid();
        for (const lane of this.lanes.all) {
            for (const [index, row] of rowsShown(lane).entries()) {
                const y = AXIS + lane.top + HEADER + index * PITCH - this.scrollTop;
                if (y < AXIS - PITCH || y > height) continue;
                this.drawRow(row, y, signs);
                if (row.events.length) marks.push([row, y]);
            }
        }
        this.renderEngine.resolveQueue();
        ctx.font = FONT;
        ctx.textBaseline = "alphabetic";
        for (const [piece, y] of signs) this.drawFailure(piece, y);
        for (const [row, y] of marks) this.drawMarks(row, y);
        this.drawSelection();
        ctx.fillStyle = this.palette.background;
        ctx.fillRect(0, 0, width, AXIS);
        this.drawAxis();
        this.renderEngine.reset(); // the library remembers what colours it has set
    }

    private drawRow(row: Row, y: number, signs: [Piece, number][]): void {
        const { zoom, positionX, width, ctx } = this.renderEngine;
        const { trace, found } = this.state;
        forEachPiece(this.state, this.lanes, row, positionX, zoom, width, (piece) => {
            const wide = piece.end - piece.x;
            const kind = trace.kind[piece.span]!;
            const isDim = found !== null && !piece.isFound;
            this.block(kind, piece.x, y, piece.isNarrow || wide < 3 ? wide : wide - 1, isDim);
            if (piece.hasFailed) signs.push([piece, y]);
            const seen = Math.min(piece.end, width) - Math.max(piece.x, 0);
            if (isDim || seen < LETTER_WIDTH) return;
            const shift = this.besideMarks(piece, seen);
            const texts = textsOf(trace, piece.span);
            const text = this.ruler.choose(ctx, texts, seen - shift - 2 * PADDING - 1);
            this.renderEngine.addText(
                { text, x: piece.x + shift, y: y - 1, w: wide - 1 - shift },
                2,
            );
        });
    }

    /** Where a piece's text begins: after the sign and the marks that would be over it. */
    private besideMarks(piece: Piece, seen: number): number {
        const { trace } = this.state;
        const left = Math.max(piece.x, 0);
        let shift = piece.hasFailed ? LETTER_WIDTH : 0;
        for (const event of trace.eventsOf(piece.span)) {
            const x = this.at(trace.eventTime[event]!) - left;
            const room = Math.min(seen, shift + TEXT_WIDTH);
            if (x > shift - MARK && x < room) shift = x + MARK;
        }
        return shift;
    }

    /** A red frame, and a red ! where there is room. */
    private drawFailure(piece: Piece, y: number): void {
        const { ctx, width } = this.renderEngine;
        const wide = Math.max(2, piece.end - piece.x - 1);
        const x = Math.max(piece.x, 0);
        ctx.strokeStyle = ctx.fillStyle = this.palette.error;
        ctx.lineWidth = 2;
        ctx.strokeRect(piece.x + 1, y + 1, Math.max(0, wide - 2), BLOCK - 2);
        ctx.lineWidth = 1;
        if (Math.min(piece.end, width) - x < LETTER_WIDTH) return;
        ctx.fillRect(x, y, LETTER_WIDTH, BLOCK);
        ctx.fillStyle = this.palette.background;
        ctx.font = `bold ${FONT}`;
        ctx.fillText("!", x + 4.5, y + BLOCK - 5);
        ctx.font = FONT;
    }

    /** A diamond for collectives, a ring for other events; ticks where they are dense. */
    private drawMarks(row: Row, y: number): void {
        const { ctx, width } = this.renderEngine;
        const { trace, found } = this.state;
        const at = (index: number) => {
            const event = row.events[index];
            return event === undefined ? Infinity : this.at(trace.eventTime[event]!);
        };
        let last = -Infinity;
        for (const [index, event] of row.events.entries()) {
            const x = at(index);
            if (x > width + MARK) break;
            const isDense = x - last < DENSE || at(index + 1) - x < DENSE;
            if (x < -MARK || (isDense && x - last < 2)) continue;
            last = x;
            const isFound = found === null || found[trace.eventSpan[event]!];
            ctx.globalAlpha = isFound ? 1 : 0.35;
            if (isDense) this.drawTick(trace.eventKind[event]!, x, y);
            else this.drawMark(trace.eventKind[event]!, x, y + BLOCK / 2);
        }
        ctx.globalAlpha = 1;
    }

    private drawTick(kind: number, x: number, y: number): void {
        const { ctx } = this.renderEngine;
        ctx.fillStyle = kind === EXCEPTION ? this.palette.error : INK;
        ctx.fillRect(x - 0.5, y + BLOCK - 6, 1, 6);
    }

    private drawMark(kind: number, x: number, y: number): void {
        const { ctx } = this.renderEngine;
        ctx.beginPath();
        if (kind === COLLECTIVE) {
            ctx.moveTo(x, y - MARK);
            ctx.lineTo(x + MARK, y);
            ctx.lineTo(x, y + MARK);
            ctx.lineTo(x - MARK, y);
            ctx.closePath();
        } else {
            ctx.arc(x, y, 3, 0, 2 * Math.PI);
        }
        ctx.fillStyle = kind === EXCEPTION ? this.palette.error : "#ffffff";
        ctx.strokeStyle = INK;
        ctx.lineWidth = 1.5;
        ctx.fill();
        ctx.stroke();
        ctx.lineWidth = 1;
    }

    /** The selected span, and a curve to what it is linked with. */
    private drawSelection(): void {
        const { selected, trace } = this.state;
        if (selected < 0) return;
        const box = this.boxOf(selected);
        if (box === null) return;
        const { ctx } = this.renderEngine;
        const linked = [
            ...trace.linksOf(selected).map((link) => link.target),
            ...trace.linkedFrom(selected),
        ];
        for (const other of linked.slice(0, 20)) {
            const to = other < 0 ? null : this.boxOf(other);
            if (to === null) continue;
            ctx.strokeStyle = this.palette.frame;
            ctx.setLineDash([4, 3]);
            ctx.lineWidth = 1.5;
            ctx.strokeRect(to.x, to.y, Math.max(3, to.width), to.height);
            const [one, two] = [box.x + box.width / 2, to.x + to.width / 2];
            const low = Math.max(box.y, to.y) + BLOCK;
            ctx.beginPath();
            ctx.moveTo(one, box.y + BLOCK);
            ctx.bezierCurveTo(one, low + 40, two, low + 40, two, to.y + BLOCK);
            ctx.stroke();
        }
        this.frame(box.x, box.y, box.width, box.height);
    }

    private drawGrid(): void {
        const { ctx, width, height } = this.renderEngine;
        ctx.fillStyle = this.palette.line;
        this.forEachTick((x) => ctx.fillRect(Math.round(x), AXIS, 1, height));
        for (const lane of this.lanes.all) {
            const y = AXIS + lane.top - this.scrollTop;
            ctx.fillRect(0, y, width, 1);
        }
    }

    private drawAxis(): void {
        const { ctx, width } = this.renderEngine;
        ctx.fillStyle = this.palette.line;
        ctx.fillRect(0, AXIS - 1, width, 1);
        this.forEachTick((x, text) => {
            ctx.fillStyle = this.palette.line;
            ctx.fillRect(Math.round(x), AXIS - 7, 1, 7);
            if (x + 4 + this.ruler.width(ctx, text) > width) return;
            ctx.fillStyle = this.palette.faint;
            ctx.fillText(text, x + 4, AXIS - 8);
        });
    }

    private forEachTick(tell: (x: number, text: string) => void): void {
        const { positionX, width } = this.renderEngine;
        const until = positionX + this.renderEngine.getRealView();
        const { step, label } = ticks(Math.max(0, positionX), until, width / 110);
        for (let at = Math.ceil(positionX / step) * step; at <= until; at += step) {
            if (at >= 0) tell(this.at(at), label(at));
        }
    }
}
