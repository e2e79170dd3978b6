// Which things belong to which spans.

/** For each span the numbers of what belongs to it: `list` from `offsets[span]` on. */
export class Groups {
    readonly offsets: Uint32Array;
    readonly list: Uint32Array;

    constructor(count: number, owners: ArrayLike<number>) {
        this.offsets = new Uint32Array(count + 1);
        for (let item = 0; item < owners.length; item++) {
            if (owners[item]! >= 0) this.offsets[owners[item]! + 1]!++;
        }
        for (let owner = 0; owner < count; owner++)
            this.offsets[owner + 1]! += this.offsets[owner]!;
        this.list = new Uint32Array(this.offsets[count]!);
        const next = this.offsets.slice();
        for (let item = 0; item < owners.length; item++) {
            if (owners[item]! >= 0) this.list[next[owners[item]!]!++] = item;
        }
    }

    of(owner: number): Uint32Array {
        return this.list.subarray(this.offsets[owner]!, this.offsets[owner + 1]!);
    }
}
