// Bytes -> columns. `otel_modtrack/view/html/binary.py` is the other side.

type Kind = "f64" | "u32" | "i32" | "u8" | "text";

const WIDTHS = { f64: 8, u32: 4, i32: 4, u8: 1, text: 1 };

/** Columns of what the page was given, by name. */
export class Columns {
    readonly meta: Record<string, unknown>;
    private readonly places: Record<string, [Kind, number, number]>;
    private readonly content: Uint8Array;

    constructor(bytes: Uint8Array) {
        const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
        this.meta = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
        this.places = this.meta["columns"] as Record<string, [Kind, number, number]>;
        this.content = bytes.subarray(4 + size);
    }

    f64(name: string): Float64Array {
        return new Float64Array(this.joined(name));
    }

    u32(name: string): Uint32Array {
        return new Uint32Array(this.joined(name));
    }

    i32(name: string): Int32Array {
        return new Int32Array(this.joined(name));
    }

    u8(name: string): Uint8Array {
        return new Uint8Array(this.joined(name));
    }

    /** The texts of a column, each decoded when it is asked for. */
    texts(name: string): (index: number) => string {
        const ends = this.u32(`${name}_ends`);
        const content = this.bytes(name);
        const decoder = new TextDecoder();
        return (index) =>
            decoder.decode(content.subarray(index ? ends[index - 1] : 0, ends[index] ?? 0));
    }

    private bytes(name: string): Uint8Array {
        const [, first, size] = this.places[name]!;
        return this.content.subarray(first, first + size);
    }

    /** Bring the bytes of each number together again. */
    private joined(name: string): ArrayBuffer {
        const width = WIDTHS[this.places[name]![0]];
        const split = this.bytes(name);
        const count = split.length / width;
        const joined = new Uint8Array(split.length);
        for (let byte = 0; byte < width; byte++) {
            const plane = byte * count;
            for (let index = 0, to = byte; index < count; index++, to += width) {
                joined[to] = split[plane + index]!;
            }
        }
        return joined.buffer;
    }
}

/** Take apart base64 of gzip. */
export async function unpack(base64: string): Promise<Columns> {
    const text = atob(base64);
    const packed = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Columns(new Uint8Array(await new Response(stream).arrayBuffer()));
}
