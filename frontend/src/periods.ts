// The steps, or else the traces, that spans belong to.

import type { Trace } from "./trace";

/** A training step on all ranks; a trace, where there are no steps. */
export interface Period {
    readonly label: string;
    start: number;
    end: number;
    /** Of a step, the longest on any rank: their clocks may differ. Of a trace, all of it. */
    duration: number;
    /** The outermost spans: one for each process. */
    readonly spans: number[];
}

/** Periods by what tells them apart, in order of appearance. */
class Periods {
    readonly all: Period[] = [];
    private readonly known = new Map<string, number>();

    constructor(private readonly trace: Trace) {}

    indexOf(key: string): number {
        return this.known.get(key) ?? -1;
    }

    /** Add an outermost span; returns its period's index. */
    add(key: string, label: string, span: number): number {
        const [start, end] = [this.trace.start[span]!, this.trace.end[span]!];
        let index = this.indexOf(key);
        if (index < 0) {
            index = this.all.push({ label, start, end, duration: 0, spans: [] }) - 1;
            this.known.set(key, index);
        }
        const period = this.all[index]!;
        period.start = Math.min(period.start, start);
        period.end = Math.max(period.end, end);
        period.spans.push(span);
        return index;
    }
}

/**
 * Find the steps, and each span's; -1 for a span that is in none.
 *
 * @param steps Spans of steps, and their numbers.
 */
export function findSteps(trace: Trace, steps: [number, number][]): [Period[], Int32Array] {
    const periods = new Periods(trace);
    const seen = new Map<string, number>();
    const periodOf = new Int32Array(trace.count).fill(-1);
    for (const [span, number] of steps) {
        // A job with several epochs, or that was resumed, has a step twice on a rank.
        const { rank, service, source } = trace.processes[trace.process[span]!]!;
        const key = `${number} ${rank ?? `${service} ${source}`}`;
        const turn = (seen.get(key) ?? 0) + 1;
        seen.set(key, turn);
        const label = turn === 1 ? `${number}` : `${number} (${turn})`;
        const index = periods.add(label, label, span);
        periodOf[span] = index;
        const period = periods.all[index]!;
        period.duration = Math.max(period.duration, trace.duration[span]!);
    }
    for (const span of trace.walk) {
        const parent = trace.parent[span]!;
        if (periodOf[span]! < 0 && parent >= 0) periodOf[span] = periodOf[parent]!;
    }
    return [periods.all, periodOf];
}

/** Find the traces, and each span's. */
export function findTraces(trace: Trace): [Period[], Int32Array] {
    const periods = new Periods(trace);
    for (const span of trace.walk) {
        if (trace.parent[span]! >= 0) continue;
        const id = trace.traceId(span);
        periods.add(id, `${trace.labelOf(span)} ${id.slice(0, 8)}`, span);
    }
    for (const period of periods.all) period.duration = period.end - period.start;
    const periodOf = new Int32Array(trace.count);
    return [periods.all, periodOf.map((_, span) => periods.indexOf(trace.traceId(span)))];
}
