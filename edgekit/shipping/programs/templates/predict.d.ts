// Types of predict.js: __TITLE__.
//? picture

/** RGB or RGBA bytes of an upright picture. */
export interface Pixels { data: ArrayLike<number>; width: number; height: number }
/** Where the network's picture lies in the caller's. */
export interface Rendered extends Omit<Pixels, "data"> {
  pixels: Uint8ClampedArray;
  left: number;
  top: number;
  scaleX: number;
  scaleY: number;
}
export function render(picture: Pixels): Rendered;
//.
//? classes
export type Answer = { label: string; index: number; score: number }[];
export function read(answer: Outputs): Answer;
//.
//? boxes
export type Answer = {
  label: string; index: number; score: number; left: number; top: number; right: number; bottom: number;
}[];
export function read(answer: Outputs, rendered: Rendered): Answer;
//.
//? vector
export type Answer = Float32Array;
export function read(answer: Outputs): Answer;
//.
//? raw
export type Answer = Outputs;
export function read(answer: Outputs): Answer;
//.

export type Outputs = Record<__OUTPUT_TYPE__, Float32Array>;
export function tensorOf(item: ArrayLike<number>): __ARRAY__;
export function run(item: ArrayLike<number>): Promise<Outputs>;
//? picture
//? web
export function predict(picture: Pixels | HTMLImageElement | HTMLCanvasElement | HTMLVideoElement | ImageBitmap): Promise<Answer>;
//.
//? node
export function predict(picture: Pixels | string | Uint8Array): Promise<Answer>;
//.
//.
//? not picture
export function predict(item: ArrayLike<number>): Promise<Answer>;
//.
export function check(): Promise<string[]>;
