// What flame-chart-js's types need of Node's.
declare module "events" {
    export class EventEmitter {
        on(name: string, listener: (...values: never[]) => void): this;
    }
}
