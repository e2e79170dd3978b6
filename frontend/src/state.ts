// What the user has chosen. Whoever shows it listens.

import type { Trace } from "./trace";

export type Topic = "selected" | "search" | "scope" | "theme";

/** Which spans are summed up; -1 for all. */
export interface Scope {
    readonly period: number;
    readonly process: number;
}

export class State {
    selected = -1;
    query = "";
    /** For each span whether it is found; null without a query. */
    found: Uint8Array | null = null;
    foundCount = 0;
    scope: Scope = { period: -1, process: -1 };
    theme: "light" | "dark" = "light";
    private readonly listeners = new Map<Topic, (() => void)[]>();

    constructor(readonly trace: Trace) {}

    on(topics: readonly Topic[], listener: () => void): void {
        for (const topic of topics) {
            this.listeners.set(topic, [...(this.listeners.get(topic) ?? []), listener]);
        }
    }

    tell(topic: Topic): void {
        for (const listener of this.listeners.get(topic) ?? []) listener();
    }

    select(span: number): void {
        if (span === this.selected) return;
        this.selected = span;
        this.tell("selected");
    }

    setScope(scope: Partial<Scope>): void {
        this.scope = { ...this.scope, ...scope };
        this.tell("scope");
    }

    /** Whether a span is among those that are summed up. */
    isInScope(span: number): boolean {
        const { period, process } = this.scope;
        return (
            (period < 0 || this.trace.period[span] === period) &&
            (process < 0 || this.trace.process[span] === process)
        );
    }
}
