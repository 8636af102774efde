// __TITLE__ with MediaPipe Tasks: written by edgekit export. It needs no edgekit.

import { FilesetResolver, __TASK__ } from "@mediapipe/tasks-vision";

const at = (name) => new URL(name, import.meta.url).href;

async function open(options) {
  const wasm = await FilesetResolver.forVisionTasks(new URL("wasm", import.meta.resolve("@mediapipe/tasks-vision")).href);
  const baseOptions = { modelAssetPath: at("./model.tflite"), delegate: "CPU" };
  return __TASK__.createFromOptions(wasm, { baseOptions, runningMode: "IMAGE", __JS_OPTIONS__, ...options });
}

let task;
const opened = () => (task ??= open().catch((error) => {
  task = undefined; // the next call tries again
  throw error;
}));

//? crop
/** The part of a picture that the model looks at, as fractions of its sides. */
export function region(width, height) {
  const even = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)); // half to even
  const scale = Math.min(width / __WIDTH__, height / __HEIGHT__) * __CROP__;
  const w = Math.max(1, even(__WIDTH__ * scale)), h = Math.max(1, even(__HEIGHT__ * scale));
  const left = (width - w) >> 1, top = (height - h) >> 1;
  return { left: left / width, top: top / height, right: (left + w) / width, bottom: (top + h) / height };
}

//.
function ask(net, picture, whole = false) {
//? crop
  const width = picture.videoWidth || picture.naturalWidth || picture.width;
  const height = picture.videoHeight || picture.naturalHeight || picture.height;
  const result = net.__VERB__(picture, whole ? {} : { regionOfInterest: region(width, height) });
//.
//? not crop
  const result = net.__VERB__(picture);
//.
//? classes
  return result.classifications[0].categories.map(({ categoryName, index, score }) => (
    { label: categoryName || String(index), index, score }));
//.
//? boxes
  return result.detections.map(({ boundingBox: b, categories: [{ categoryName, index, score }] }) => ({
    label: categoryName || String(index), index, score,
    left: b.originX, top: b.originY, right: b.originX + b.width, bottom: b.originY + b.height,
  })).sort((one, other) => other.score - one.score);
//.
//? vector
  return result.embeddings[0].floatEmbedding;
//.
}

/** __ANSWER__ picture: an image, a canvas, a video, ImageData. */
export async function predict(picture) {
  return ask(await opened(), picture);
}

/** Run what edgekit recorded: a line, "ok" or what differs. */
export async function check() {
//? crop
  for (const [width, height, wanted] of [[__REGION_1__], [__REGION_2__]]) {
    const { left, top, right, bottom } = region(width, height);
    if ([left, top, right, bottom].some((x, i) => Math.abs(x - wanted[i]) > 1e-6)) {
      return [`differs: the region of a picture of ${width} x ${height}`];
    }
  }
//.
//? classes
  const net = await open({ maxResults: -1 });
//.
//? not classes
  const net = await open();
//.
  const golden = await (await fetch(at("./golden.json"))).json();
  for (const [number, recorded] of golden.entries()) {
    const picture = await createImageBitmap(await (await fetch(at(`./golden-${number}.png`))).blob());
    let got = ask(net, picture, true), wanted = recorded;
//? classes
    got.sort((one, other) => one.index - other.index);
//? labels
    let a = 1, b = 0; // Adler-32
    for (const byte of new TextEncoder().encode(got.map(({ label }) => label).join("\n"))) {
      b = (b + (a = (a + byte) % 65521)) % 65521;
    }
    if (b * 65536 + a !== __LABELS_SUM__) return ["differs: the model's labels are not the bundle's"];
//.
    got = got.map(({ score }) => score);
//.
//? boxes
    if (got.map((one) => one.label).join("\n") !== wanted.map((one) => one[1]).join("\n")) return [__DIFFERS__];
    got = got.flatMap((one) => [one.score, one.left, one.top, one.right, one.bottom]);
    wanted = wanted.flatMap((one) => one.slice(2));
//.
    let apart = 0, dot = 0, one = 0, other = 0;
    for (let i = 0; i < wanted.length; i++) {
      const distance = Math.abs(got[i] - wanted[i]);
      apart = apart >= distance ? apart : distance; // NaN stays
      [dot, one, other] = [dot + got[i] * wanted[i], one + got[i] ** 2, other + wanted[i] ** 2];
    }
    if (!(apart <= __ALLOWED__ || dot / Math.sqrt(one * other) >= __COSINE__)) return [__DIFFERS__];
  }
  net.close();
  return ["ok"];
}
