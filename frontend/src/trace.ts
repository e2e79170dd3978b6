// All spans of the page, as columns, and what follows from them.

import type { Columns } from "./binary";
import { Groups } from "./groups";
import { BACKWARD, FORWARD, KINDS, RECOMPUTE } from "./kinds";
import { findSteps, findTraces, type Period } from "./periods";

export interface Process {
    readonly label: string;
    readonly service: string;
    readonly rank: number | null;
    readonly world_size: number | null;
    readonly source: string;
    readonly attributes: Record<string, unknown>;
}

export interface SpanSet {
    readonly attributes: Record<string, unknown>;
    readonly scope: string;
    readonly kind: number;
}

export interface Link {
    readonly target: number;
    readonly attributes: Record<string, unknown>;
    readonly trace_id?: string;
    readonly span_id?: string;
}

export class Trace {
    readonly title: string;
    readonly version: string;
    readonly faults: readonly string[];
    readonly strings: readonly string[];
    readonly processes: readonly Process[];
    readonly count: number;
    /** ns after the first start of all. */
    readonly start: Float64Array;
    readonly end: Float64Array;
    readonly duration: Float64Array;
    /** Time that no child covers, in ns. */
    readonly self: Float64Array;
    readonly parent: Int32Array;
    readonly row: Uint32Array;
    readonly process: Uint32Array;
    readonly name: Uint32Array;
    readonly label: Uint32Array;
    readonly fqn: Uint32Array;
    readonly kind: Uint8Array;
    readonly failed: Uint8Array;
    /** Parents before children, siblings in order of start. */
    readonly walk: Uint32Array;
    readonly periods: readonly Period[];
    readonly hasSteps: boolean;
    /** Index of each span's period, or -1. */
    readonly period: Int32Array;
    readonly length: number;
    readonly eventSpan: Uint32Array;
    readonly eventTime: Float64Array;
    readonly eventKind: Uint8Array;
    readonly eventName: Uint32Array;
    private readonly sets: Uint32Array;
    private readonly traces: Uint32Array;
    private readonly traceIds: readonly string[];
    private readonly messages: Record<string, string>;
    private readonly epoch: bigint;
    private readonly readSet: (index: number) => string;
    private readonly readId: (index: number) => string;
    private readonly eventSet: Uint32Array;
    private readonly linkSpan: Uint32Array;
    private readonly linkTarget: Int32Array;
    private readonly linkSet: Uint32Array;
    private readonly children: Groups;
    private readonly events: Groups;
    private readonly links: Groups;
    private readonly backlinks: Groups;
    private readonly parsed = new Map<number, unknown>();

    constructor(columns: Columns) {
        const meta = columns.meta;
        this.title = meta["title"] as string;
        this.version = meta["version"] as string;
        this.faults = meta["faults"] as string[];
        this.strings = meta["strings"] as string[];
        this.processes = meta["processes"] as Process[];
        this.traceIds = meta["traces"] as string[];
        this.messages = meta["messages"] as Record<string, string>;
        this.epoch = BigInt(meta["epoch_ns"] as string);
        this.start = columns.f64("start");
        this.duration = columns.f64("duration");
        this.count = this.start.length;
        this.end = this.start.map((start, span) => start + this.duration[span]!);
        this.parent = columns.i32("parent");
        this.row = columns.u32("row");
        this.process = columns.u32("process");
        this.name = columns.u32("name");
        this.label = columns.u32("label");
        this.fqn = columns.u32("fqn");
        this.kind = columns.u8("kind");
        this.failed = columns.u8("failed");
        this.sets = columns.u32("set");
        this.traces = columns.u32("trace");
        this.readSet = columns.texts("sets");
        this.readId = columns.texts("ids");
        this.eventSpan = columns.u32("event_span");
        this.eventTime = columns.f64("event_time");
        this.eventKind = columns.u8("event_kind");
        this.eventName = columns.u32("event_name");
        this.eventSet = columns.u32("event_set");
        this.linkSpan = columns.u32("link_span");
        this.linkTarget = columns.i32("link_target");
        this.linkSet = columns.u32("link_set");
        this.children = new Groups(this.count, this.parent);
        this.events = new Groups(this.count, this.eventSpan);
        this.links = new Groups(this.count, this.linkSpan);
        this.backlinks = new Groups(this.count, this.linkTarget);
        this.length = this.end.reduce((last, end) => Math.max(last, end), 0);
        this.self = this.findSelf();
        this.walk = this.findWalk();
        const steps = meta["steps"] as [number, number][];
        this.hasSteps = steps.length > 0;
        [this.periods, this.period] = this.hasSteps ? findSteps(this, steps) : findTraces(this);
    }

    childrenOf(span: number): Uint32Array {
        return this.children.of(span);
    }

    eventsOf(span: number): Uint32Array {
        return this.events.of(span);
    }

    linksOf(span: number): Link[] {
        return [...this.links.of(span)].map((link) => ({
            ...(this.parse(this.linkSet[link]!) as Omit<Link, "target">),
            target: this.linkTarget[link]!,
        }));
    }

    /** The spans that link to this one. */
    linkedFrom(span: number): number[] {
        return [...this.backlinks.of(span)].map((link) => this.linkSpan[link]!);
    }

    setOf(span: number): SpanSet {
        return this.parse(this.sets[span]!) as SpanSet;
    }

    eventAttributes(event: number): Record<string, unknown> {
        return this.parse(this.eventSet[event]!) as Record<string, unknown>;
    }

    messageOf(span: number): string {
        return this.messages[span] ?? "";
    }

    spanId(span: number): string {
        return this.readId(span);
    }

    traceId(span: number): string {
        return this.traceIds[this.traces[span]!]!;
    }

    labelOf(span: number): string {
        return this.strings[this.label[span]!]!;
    }

    nameOf(span: number): string {
        return this.strings[this.name[span]!]!;
    }

    fqnOf(span: number): string {
        return this.strings[this.fqn[span]!]!;
    }

    /** Whether it is of a module or a named region. */
    isModule(span: number): boolean {
        const kind = this.kind[span]!;
        return (
            (kind === FORWARD || kind === BACKWARD || kind === RECOMPUTE) &&
            this.fqn[span] !== this.name[span]
        );
    }

    /** `backward GPT.layers.0`, the same for every call. */
    moduleOf(span: number): string {
        if (!this.isModule(span)) return this.nameOf(span);
        return `${KINDS[this.kind[span]!]!.word} ${this.fqnOf(span)}`;
    }

    /** `rank 1 · trainer`, and the file or a number where that is needed to tell two apart. */
    processName(index: number): string {
        const process = this.processes[index]!;
        const { label, service, source } = process;
        const doubles = this.processes.filter((other) => other.label === label);
        const inFile = doubles.filter((other) => other.source === source);
        const parts = [
            label,
            service !== label ? service : "",
            inFile.length < doubles.length ? source : "",
            inFile.length > 1 ? `#${inFile.indexOf(process) + 1}` : "",
        ];
        return parts.filter(Boolean).join(" · ");
    }

    /** Wall time. */
    clock(ns: number): string {
        const at = this.epoch + BigInt(Math.round(ns));
        const seconds = new Date(Number(at / 1000000n)).toISOString().slice(0, 19);
        return `${seconds.replace("T", " ")}.${(at % 1000000000n).toString().padStart(9, "0")} UTC`;
    }

    private parse(set: number): unknown {
        let found = this.parsed.get(set);
        if (found === undefined) {
            found = JSON.parse(this.readSet(set));
            this.parsed.set(set, found);
        }
        return found;
    }

    /** As `Node.self_ns` in Python: children that overlap count once. */
    private findSelf(): Float64Array {
        const self = this.duration.slice();
        const reached = this.start.slice();
        for (let span = 0; span < this.count; span++) {
            const parent = this.parent[span]!;
            if (parent < 0) continue;
            const start = Math.max(this.start[span]!, reached[parent]!);
            const end = Math.min(this.end[span]!, this.end[parent]!);
            if (end > start) {
                self[parent]! -= end - start;
                reached[parent] = end;
            }
        }
        return self;
    }

    private findWalk(): Uint32Array {
        const walk = new Uint32Array(this.count);
        const waiting: number[] = [];
        for (let span = this.count - 1; span >= 0; span--)
            if (this.parent[span]! < 0) waiting.push(span);
        for (let at = 0; waiting.length; at++) {
            const span = waiting.pop()!;
            walk[at] = span;
            const children = this.children.of(span);
            for (let child = children.length - 1; child >= 0; child--)
                waiting.push(children[child]!);
        }
        return walk;
    }
}
