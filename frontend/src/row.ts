// One row of spans, at whatever zoom.

import type { Lanes, Row } from "./lanes";
import type { State } from "./state";

/** Spans narrower than this are drawn together, in pixels. */
const SMALL = 2;
/** What is drawn together is about as wide. */
const BUCKET = 3;

/** A span, or several that are too narrow to be told apart. */
export interface Piece {
    /** The longest of them. */
    span: number;
    readonly isNarrow: boolean;
    /** In whole pixels, so that nothing is blurred and nothing shines through between two. */
    x: number;
    end: number;
    isFound: boolean;
    hasFailed: boolean;
}

/**
 * Cut what is seen of a row into pieces, from left to right.
 *
 * Narrow spans are gathered by where they are in time, not on the screen, so that nothing flickers
 * while the view moves.
 */
export function forEachPiece(
    state: State,
    lanes: Lanes,
    row: Row,
    from: number,
    zoom: number,
    width: number,
    tell: (piece: Piece) => void,
): void {
    const { trace, found } = state;
    const until = from + width / zoom;
    let gathered: Piece | null = null;
    let bucket = 0;
    for (let index = lanes.firstAfter(row, from); index < row.spans.length; index++) {
        const span = row.spans[index]!;
        const start = trace.start[span]!;
        if (start > until) break;
        const x = (start - from) * zoom;
        const end = (trace.end[span]! - from) * zoom;
        const isFound = found === null || found[span] === 1;
        const hasFailed = trace.failed[span] === 1;
        const isSmall = end - x < SMALL;
        const place = Math.floor((start * zoom) / BUCKET);
        if (gathered !== null && isSmall && place === bucket) {
            gathered.end = end;
            gathered.hasFailed ||= hasFailed;
            const isBetter = isFound === gathered.isFound;
            if (isFound && !gathered.isFound) gathered.span = span;
            else if (isBetter && trace.duration[span]! > trace.duration[gathered.span]!) {
                gathered.span = span;
            }
            gathered.isFound ||= isFound;
            continue;
        }
        if (gathered !== null) tell(snapped(gathered));
        const piece = { span, isNarrow: isSmall, x, end, isFound, hasFailed };
        gathered = isSmall ? piece : null;
        bucket = place;
        if (!isSmall) tell(snapped(piece));
    }
    if (gathered !== null) tell(snapped(gathered));
}

function snapped(piece: Piece): Piece {
    const { isNarrow } = piece;
    piece.x = isNarrow ? Math.floor(piece.x) : Math.round(piece.x);
    piece.end = Math.max(piece.x + 1, isNarrow ? Math.ceil(piece.end) : Math.round(piece.end));
    return piece;
}
