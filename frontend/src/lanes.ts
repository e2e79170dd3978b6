// Where each span is: a lane for each process, rows in it, and what is at a point.

import type { Trace } from "./trace";

export const HEADER = 22;
export const BLOCK = 17;
export const PITCH = 18;
const GAP = 8;

export interface Row {
    /** In order of start, and none over another: so the ends are in order, too. */
    readonly spans: Uint32Array;
    /** Events in order of time. */
    readonly events: Uint32Array;
}

export interface Lane {
    readonly process: number;
    readonly rows: readonly Row[];
    readonly count: number;
    /** Of its header, from the top of all lanes. */
    top: number;
    height: number;
    isFolded: boolean;
}

/** All rows; of a folded lane the first. */
export function rowsShown(lane: Lane): readonly Row[] {
    return lane.isFolded ? lane.rows.slice(0, 1) : lane.rows;
}

export class Lanes {
    readonly all: readonly Lane[];
    height = 0;

    constructor(private readonly trace: Trace) {
        const spans = trace.processes.map((): number[][] => []);
        const events = trace.processes.map((): number[][] => []);
        for (let span = 0; span < trace.count; span++) {
            (spans[trace.process[span]!]![trace.row[span]!] ??= []).push(span);
        }
        const inOrder = trace.eventTime.map((_, event) => event);
        inOrder.sort((one, other) => trace.eventTime[one]! - trace.eventTime[other]!);
        for (const event of inOrder) {
            const span = trace.eventSpan[event]!;
            (events[trace.process[span]!]![trace.row[span]!] ??= []).push(event);
        }
        this.all = spans.map((rows, process) => ({
            process,
            rows: rows.map((row, index) => ({
                spans: Uint32Array.from(row),
                events: Uint32Array.from(events[process]![index] ?? []),
            })),
            count: rows.reduce((sum, row) => sum + row.length, 0),
            top: 0,
            height: 0,
            isFolded: false,
        }));
        this.stack();
    }

    /** Put the lanes one below the other. */
    stack(): void {
        let top = 0;
        for (const lane of this.all) {
            lane.top = top;
            lane.height = HEADER + rowsShown(lane).length * PITCH;
            top += lane.height + GAP;
        }
        this.height = top;
    }

    /** Of a span, from the top of all lanes. */
    topOf(span: number): number {
        const lane = this.all[this.trace.process[span]!]!;
        return lane.top + HEADER + this.trace.row[span]! * PITCH;
    }

    isShown(span: number): boolean {
        return this.trace.row[span]! < rowsShown(this.all[this.trace.process[span]!]!).length;
    }

    rowAt(y: number): Row | undefined {
        const lane = this.all.find((lane) => y >= lane.top && y < lane.top + lane.height);
        return lane && rowsShown(lane)[Math.floor((y - lane.top - HEADER) / PITCH)];
    }

    /** Index in the row of the first span that ends after a moment. */
    firstAfter(row: Row, time: number): number {
        let low = 0;
        let high = row.spans.length;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (this.trace.end[row.spans[middle]!]! < time) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    /** The longest span of a row that is at, or as near as `slack` to, a moment; -1 for none. */
    spanAt(row: Row, time: number, slack: number): number {
        const { start, end, duration } = this.trace;
        let best = -1;
        for (let index = this.firstAfter(row, time - slack); index < row.spans.length; index++) {
            const span = row.spans[index]!;
            if (start[span]! > time + slack) break;
            if (start[span]! <= time && end[span]! >= time && duration[span]! > 2 * slack)
                return span;
            if (best < 0 || duration[span]! > duration[best]!) best = span;
        }
        return best;
    }

    /** The event of a row that is nearest to a moment, if one is as near as `slack`; or else -1. */
    eventAt(row: Row, time: number, slack: number): number {
        let best = -1;
        let distance = slack;
        for (const event of row.events) {
            const away = Math.abs(this.trace.eventTime[event]! - time);
            if (away <= distance) [best, distance] = [event, away];
        }
        return best;
    }
}
