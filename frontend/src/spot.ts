// What is under the pointer.

import type { Point } from "./chart";
import { tellCollective } from "./collective";
import { duration } from "./format";
import { COLLECTIVE } from "./kinds";
import type { State } from "./state";

/** A span, or an event of it (or else -1). */
export interface Spot {
    readonly span: number;
    readonly event: number;
    readonly at: Point;
}

/** What a tooltip says of a spot: a title and lines. */
export function tellSpot(state: State, spot: Spot): string[] {
    const { trace } = state;
    if (spot.event >= 0) {
        const title = trace.strings[trace.eventName[spot.event]!]!;
        const attributes = trace.eventAttributes(spot.event);
        const isCollective = trace.eventKind[spot.event] === COLLECTIVE;
        const text = isCollective
            ? tellCollective(attributes)
            : String(attributes["exception.message"] ?? "");
        const after = trace.eventTime[spot.event]! - trace.start[spot.span]!;
        return [text || title, `${duration(after)} into ${trace.labelOf(spot.span)}`];
    }
    const self = trace.self[spot.span]!;
    const lines = [`${duration(trace.duration[spot.span]!)}, self ${duration(self)}`];
    if (trace.failed[spot.span]) lines.push(`! ${trace.messageOf(spot.span) || "failed"}`);
    return [trace.labelOf(spot.span), ...lines];
}
