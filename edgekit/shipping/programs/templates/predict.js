// __TITLE__: written by edgekit export, for this model's contract alone. It needs no edgekit.
//? node
//
//     npm install --ignore-scripts
//     node predict.js                  the golden examples
//? picture
//     node predict.js photo.jpg
//.
//.

//? node
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import * as ort from "onnxruntime-node";
//.
//? web
//? onnx
import * as ort from "onnxruntime-web/wasm";
//.
//? tflite
import { Tensor, loadAndCompile, loadLiteRt } from "@litertjs/core";
//.
//.
//? labels
import { labels } from "./labels.js";
//.

const OUTPUTS = __OUTPUTS__;
const even = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)); // half to even

async function bytes(url) {
//? node
  return new Uint8Array(await readFile(url));
//.
//? web
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
//.
}

let model;
const opened = () => (model ??= open().catch((error) => {
  model = undefined; // the next call tries again
  throw error;
}));

//? onnx
async function open() {
  return ort.InferenceSession.create(await bytes(new URL("./model.onnx", import.meta.url)), __OPTIONS__);
}

/** The engine's raw outputs, in the order of OUTPUTS. */
async function infer(tensor) {
  const session = await opened();
  const made = await session.run({ [__INPUT__]: new ort.Tensor(__DTYPE__, tensor, __SHAPE__) });
  return OUTPUTS.map((output) => made[output.tensor].data);
}
//.
//? tflite
async function open() {
  await loadLiteRt(new URL("../wasm/", import.meta.resolve("@litertjs/core")).href);
  return loadAndCompile(await bytes(new URL("./model.tflite", import.meta.url)), { accelerator: "wasm" });
}

/** The engine's raw outputs, in the order of OUTPUTS. */
async function infer(tensor) {
  const net = await opened();
  const input = new Tensor(tensor, __SHAPE__);
  const made = await net.run(input);
  const values = OUTPUTS.map((_, at) => made[at].toTypedArray().slice());
  [input, ...made].forEach((one) => one.delete());
  return values;
}
//.

/** Answers by name as Float32Array, of one item: __ITEM__. */
export async function run(item) {
  const raw = await infer(tensorOf(item));
  return Object.fromEntries(OUTPUTS.map(({ name, scale, zero }, at) => [
    name,
    Float32Array.from(raw[at], (q) => (scale ? (Number(q) - zero) * Math.fround(scale) : Number(q))),
  ]));
}

//? quantized
/** The nearest step of the network's input; where the file takes floats, its real number. */
function nearest(real) {
  const step = Math.min(__MOST__, Math.max(__LEAST__, even(Math.fround(real / __SCALE__)) + __ZERO__));
  return __STEP__;
}

//.
//? picture
const WIDTH = __WIDTH__, HEIGHT = __HEIGHT__, CHANNELS = __CHANNELS__;

const TABLE = [__MEAN__].map((mean, c) => __ARRAY__.from({ length: 256 }, (_, pixel) => // (pixel - mean) / std
  __PIXEL__));

/** Pixels [height, width, channels] -> the tensor that the model takes. */
export function tensorOf(pixels) {
  const tensor = new __ARRAY__(pixels.length);
  for (let at = 0, from = 0; at < WIDTH * HEIGHT; at++) {
    for (let c = 0; c < CHANNELS; c++) tensor[c * __CHANNEL_STEP__ + at * __PIXEL_STEP__] = TABLE[c][pixels[from++]];
  }
  return tensor;
}

/** Where a picture goes: its part that is used, the size that becomes, and the corner on the network's canvas. */
function place(width, height) {
//? stretch
  return { left: 0, top: 0, cutW: width, cutH: height, w: WIDTH, h: HEIGHT, x: 0, y: 0 };
//.
//? crop
  const scale = Math.min(width / WIDTH, height / HEIGHT) * __CROP__;
  const cutW = Math.max(1, even(WIDTH * scale)), cutH = Math.max(1, even(HEIGHT * scale));
  return { left: (width - cutW) >> 1, top: (height - cutH) >> 1, cutW, cutH, w: WIDTH, h: HEIGHT, x: 0, y: 0 };
//.
//? letterbox
  const scale = Math.min(WIDTH / width, HEIGHT / height);
  const w = Math.max(1, even(width * scale)), h = Math.max(1, even(height * scale));
  return { left: 0, top: 0, cutW: width, cutH: height, w, h, x: (WIDTH - w) >> 1, y: (HEIGHT - h) >> 1 };
//.
}

/** Of each new pixel the first old one and the weights, in 2 ** -22ths: Pillow's __INTERPOLATION__ filter. */
function taps(from, to) {
  const step = from / to;
//? nearest
  let middle = step * 0.5;
  return Array.from({ length: to }, () => {
    const first = Math.trunc(middle);
    middle += step;
    return { first, weights: [1 << 22] };
  });
//.
//? not nearest
  const wide = Math.max(step, 1), reach = __REACH__ * wide;
  return Array.from({ length: to }, (_, at) => {
    const centre = (at + 0.5) * step;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const end = Math.min(from, Math.trunc(centre + reach + 0.5));
    const real = Array.from({ length: end - first }, (_, i) => {
      const x = Math.abs((first + i - centre + 0.5) * (1 / wide));
//? bilinear
      return x < 1 ? 1 - x : 0;
//.
//? bicubic
      return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
//.
    });
    const sum = real.reduce((a, b) => a + b, 0);
    return { first, weights: real.map((one) => Math.trunc((one / sum) * (1 << 22) + (one < 0 ? -0.5 : 0.5))) };
  });
//.
}

const clipped = (size) => new Uint8ClampedArray(size * CHANNELS); // to 0..255

/** The rows of a picture in another width. */
function across(pixels, width, height, to) {
  const made = clipped(to * height);
  taps(width, to).forEach(({ first, weights }, x) => {
    for (let y = 0; y < height; y++) {
      for (let c = 0; c < CHANNELS; c++) {
        let sum = 1 << 21;
        for (let i = 0; i < weights.length; i++) sum += pixels[(y * width + first + i) * CHANNELS + c] * weights[i];
        made[(y * to + x) * CHANNELS + c] = sum >> 22;
      }
    }
  });
  return made;
}

/** The columns of a picture in another height. */
function down(pixels, width, height, to) {
  const made = clipped(width * to), row = width * CHANNELS;
  taps(height, to).forEach(({ first, weights }, y) => {
    for (let at = 0; at < row; at++) {
      let sum = 1 << 21;
      for (let i = 0; i < weights.length; i++) sum += pixels[(first + i) * row + at] * weights[i];
      made[y * row + at] = sum >> 22;
    }
  });
  return made;
}

/** {data, width, height} of RGB or RGBA, upright -> the network's pixels, and where they lie in the picture. */
export function render({ data, width, height }) {
  const { left, top, cutW, cutH, w, h, x: x0, y: y0 } = place(width, height);
  const depth = data.length / (width * height), rgb = [0, 0, 0];
  const cut = clipped(cutW * cutH);
  for (let y = 0, to = 0; y < cutH; y++) {
    for (let x = 0, from = ((top + y) * width + left) * depth; x < cutW; x++, from += depth) {
      for (let c = 0; c < 3; c++) {
        rgb[c] = data[from + c];
        if (depth === 4 && data[from + 3] < 255) { // over white
          const sum = (rgb[c] * data[from + 3] + 255 * (255 - data[from + 3]) + 128) << 7;
          rgb[c] = (((sum >> 8) + sum) >> 8) >> 7;
        }
      }
//? gray
      cut[to++] = (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 32768) >> 16;
//.
//? rgb
      for (let c = 0; c < 3; c++) cut[to++] = rgb[c];
//.
//? bgr
      for (let c = 2; c >= 0; c--) cut[to++] = rgb[c];
//.
    }
  }
  const tall = __TALL_FIRST__ && cutH > h && cutH - h > 2 * (cutW - w); // then the other order has less to do
  const scaled = tall ? across(down(cut, cutW, cutH, h), cutW, h, w) : down(across(cut, cutW, cutH, w), w, cutH, h);
  const pixels = clipped(WIDTH * HEIGHT).fill(__PADDING__), row = w * CHANNELS;
  for (let y = 0; y < h; y++) pixels.set(scaled.subarray(y * row, (y + 1) * row), ((y0 + y) * WIDTH + x0) * CHANNELS);
  const scaleX = cutW / w, scaleY = cutH / h;
  return { pixels, width, height, left: left - x0 * scaleX, top: top - y0 * scaleY, scaleX, scaleY };
}

//? web
/** The pixels of an image, a canvas, a video's frame, or ImageData. */
function pixelsOf(source) {
  if (source.data) return source;
  const width = source.videoWidth || source.naturalWidth || source.width;
  const height = source.videoHeight || source.naturalHeight || source.height;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0);
  return context.getImageData(0, 0, width, height);
}
//.
//? node
/** The pixels of a picture's file, upright and over white. */
async function pixelsOf(source) {
  if (source.data) return source;
  const { default: sharp } = await import("sharp");
  const flat = sharp(source).rotate().flatten({ background: "white" }).toColourspace("srgb").raw();
  const { data, info } = await flat.toBuffer({ resolveWithObject: true });
  return { data, width: info.width, height: info.height };
}
//.

/** __ANSWER__ picture: __SOURCE__, or {data, width, height} of RGB or RGBA. */
export async function predict(picture) {
  const rendered = render(await pixelsOf(picture));
  return read(await run(rendered.pixels), rendered);
}
//.
//? not picture
/** One item -> the tensor that the model takes. */
export function tensorOf(item) {
  return __ARRAY__.from(item, (x) => __VALUE__);
}

/** __ANSWER__ item: __ITEM__. */
export async function predict(item) {
  return read(await run(item));
}
//.

//? classes
/** The five best classes of an answer, best first. */
export function read(answer) {
  let scores = Array.from(answer[__SCORES__]);
//? logits
  const most = Math.max(...scores), powers = scores.map((x) => Math.exp(x - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  scores = powers.map((x) => x / sum);
//.
  const order = scores.map((_, index) => index).sort((a, b) => scores[b] - scores[a]);
  return order.slice(0, 5).map((index) => ({ label: __LABEL__, index, score: scores[index] }));
}
//.
//? boxes
/** The boxes of an answer in pixels of the picture, best first. */
export function read(answer, { width, height, left, top, scaleX, scaleY }) {
  const rows = answer[__BOXES__], table = answer[__SCORES__];
  const count = Math.min(__CANDIDATES__, Math.max(0, Math.trunc(__FILLED__)));
  const found = [];
  for (let i = 0; i < count; i++) {
    let score, index;
//? stated
    score = table[__SCORE_AT__ + i * __SCORE_STEP__];
    index = even(answer[__CLASSES__][__CLASS_AT__ + i * __CLASS_STEP__]) - __SHIFT__;
//.
//? not stated
    const of = (c) => table[__SCORE_AT__ + i * __SCORE_STEP__ + c * __SCORE_NEXT__];
    for (let c = __FIRST__; c < __END__; c++) {
      if (index === undefined || of(c) > score) [score, index] = [of(c), c - __FIRST__];
    }
//? softmax
    let sum = 0, most = -Infinity;
    for (let c = 0; c < __COLUMNS__; c++) most = Math.max(most, of(c));
    for (let c = 0; c < __COLUMNS__; c++) sum += Math.exp(of(c) - most);
    score = Math.exp(score - most) / sum;
//.
//.
//? sigmoid
    score = 1 / (1 + Math.exp(-score));
//.
//? objectness
    const sure = rows[4 * __BOX_NEXT__ + i * __BOX_STEP__];
    score *= __SURE__;
//.
    score = Math.fround(score);
    if (!(score >= __THRESHOLD__) || !(index >= 0)) continue;
    const [a, b, c, d] = [0, 1, 2, 3].map((at) => rows[at * __BOX_NEXT__ + i * __BOX_STEP__]);
    const box = [__CORNERS__].map((side, at) => side * (at % 2 ? __SPAN_Y__ : __SPAN_X__));
    if (box.every(Number.isFinite)) found.push({ index, score, box });
  }
  found.sort((one, other) => other.score - one.score);
  const kept = [];
  for (const one of found) {
    if (kept.length === __MOST_BOXES__) break;
    if (!kept.some((other) => sameObject(one, other))) kept.push(one);
  }
  const inside = (x, most) => Math.min(most, Math.max(0, x));
  return kept.map(({ index, score, box }) => ({
    label: __LABEL__, index, score,
    left: inside(left + box[0] * scaleX, width),
    top: inside(top + box[1] * scaleY, height),
    right: inside(left + box[2] * scaleX, width),
    bottom: inside(top + box[3] * scaleY, height),
  })).filter((box) => box.right > box.left && box.bottom > box.top);
}

/** Whether the intersection over the union exceeds the threshold. Boxes: left, top, right, bottom. */
function sameObject({ index, box: a }, { index: other, box: b }) {
//? class_aware
  if (index !== other) return false;
//.
  const side = (far, near) => Math.max(0, far - near), area = (x) => side(x[2], x[0]) * side(x[3], x[1]);
  const common = side(Math.min(a[2], b[2]), Math.max(a[0], b[0])) * side(Math.min(a[3], b[3]), Math.max(a[1], b[1]));
  return common > __IOU__ * (area(a) + area(b) - common);
}
//.
//? vector
/** The vector of an answer. */
export function read(answer) {
  const vector = answer[__VECTOR__];
//? normalize
  const length = Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0));
  if (length) return vector.map((x) => x / length);
//.
  return vector;
}
//.
//? raw
/** The answer as it is: by name. */
export function read(answer) {
  return answer;
}
//.

/** Run what edgekit recorded: lines that end in "ok" or in what differs. */
export async function check() {
  const lines = [], sum = (data) => { // Adler-32
    let a = 1, b = 0;
    for (const byte of data) b = (b + (a = (a + byte) % 65521)) % 65521;
    return b * 65536 + a;
  };
//? labels
  if (sum(new TextEncoder().encode(labels.join("\n"))) !== __LABELS_SUM__) return ["differs: labels.js is not the bundle's"];
//.
//? picture
  for (const [width, height, wanted] of [[__PICTURE_1__], [__PICTURE_2__]]) { // made by a rule, as edgekit made them
    const data = new Uint8Array(width * height * 3);
    for (let y = 0, at = 0; y < height; y++) {
      for (let x = 0; x < width; x++) for (let c = 0; c < 3; c++) data[at++] = x * (3 + c) + y * (5 + 2 * c) + ((x * y) >> 4);
    }
    if (sum(render({ data, width, height }).pixels) !== wanted) return [`differs: the pixels of a picture of ${width} x ${height}`];
  }
//.
  const golden = (await bytes(new URL("./golden.bin", import.meta.url))).buffer;
  for (let number = 0, at = 0; number < __EXAMPLES__; number++) {
    const item = new __ITEM_ARRAY__(golden.slice(at, at += __ITEM_BYTES__));
    const answer = await run(item);
    for (const { name, size, allowed } of OUTPUTS) {
      const wanted = new Float32Array(golden.slice(at, at += 4 * size)), got = answer[name];
      let apart = 0, most = 0, dot = 0, one = 0, other = 0;
      for (let i = 0; i < size; i++) {
        const distance = Math.abs(got[i] - wanted[i]);
        apart = apart >= distance ? apart : distance; // NaN stays
        most = Math.max(most, Math.abs(wanted[i]));
        [dot, one, other] = [dot + got[i] * wanted[i], one + got[i] ** 2, other + wanted[i] ** 2];
      }
      const near = apart <= (allowed || __FLOAT_STEPS__ * most) * 1.001, cosine = dot / Math.sqrt(one * other);
      lines.push(`example ${number}, ${name}: ${apart.toPrecision(3)} apart, cosine ${cosine.toFixed(5)}`);
      if (!near && !(cosine >= __COSINE__)) return [...lines, __DIFFERS__];
    }
  }
  return [...lines, "ok"];
}
//? node

if (process.argv[1] === fileURLToPath(import.meta.url)) {
//? picture
  if (process.argv[2]) {
    try {
      await readFile(process.argv[2]);
    } catch (error) {
      console.error(`${process.argv[2]}: cannot be read: ${error.message}`);
      process.exit(2);
    }
    for (const one of __SHOWN__) console.log(one);
    process.exit();
  }
//.
  const lines = await check();
  console.log(lines.join("\n"));
  process.exitCode = lines.at(-1) === "ok" ? 0 : 1;
}
//.
