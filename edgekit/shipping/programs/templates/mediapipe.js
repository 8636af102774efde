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

//? not stretch
const even = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)); // half to even

/** What the model looks at, in pixels: left, top, width, height. Parts may lie outside of the picture. */
export function frame(width, height) {
//? letterbox
  const scale = Math.min(__WIDTH__ / width, __HEIGHT__ / height);
  const around = (side, own) => even(-((side - Math.max(1, even(own * scale))) >> 1) / scale);
  return [around(__WIDTH__, width), around(__HEIGHT__, height), Math.max(1, even(__WIDTH__ / scale)), Math.max(1, even(__HEIGHT__ / scale))];
//.
//? crop
  const scale = Math.min(width / __WIDTH__, height / __HEIGHT__) * __CROP__;
  const w = Math.max(1, even(__WIDTH__ * scale)), h = Math.max(1, even(__HEIGHT__ * scale));
  return [(width - w) >> 1, (height - h) >> 1, w, h];
//.
}

//.
//? frame
/** The frame of a picture, gray where it lies outside. */
function framed(picture, [left, top, width, height]) {
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  context.fillStyle = "rgb(__PADDING__, __PADDING__, __PADDING__)";
  context.fillRect(0, 0, width, height);
  if (picture instanceof ImageData) context.putImageData(picture, -left, -top);
  else context.drawImage(picture, -left, -top);
  return canvas;
}

//.
function ask(net, picture, whole = false) {
//? sized
  const width = picture.videoWidth || picture.naturalWidth || picture.width;
  const height = picture.videoHeight || picture.naturalHeight || picture.height;
//.
//? not stretch
  const place = whole ? [0, 0, width, height] : frame(width, height);
//.
//? region
  const [left, top] = [place[0] / width, place[1] / height];
  const regionOfInterest = { left, top, right: left + place[2] / width, bottom: top + place[3] / height };
  const result = net.__VERB__(picture, whole ? {} : { regionOfInterest });
//.
//? frame
  const result = net.__VERB__(framed(picture, place));
//.
//? stretch
  const result = net.__VERB__(picture);
//.
//? classes
  return result.classifications[0].categories.map(({ categoryName, index, score }) => (
    { label: categoryName || String(index), index, score }));
//.
//? boxes
//? stretch
  const place = [0, 0];
//.
  return result.detections.map(({ boundingBox: b, categories: [{ categoryName, index, score }] }) => ({
    label: categoryName || String(index), index, score,
    left: Math.max(b.originX + place[0], 0), right: Math.min(b.originX + place[0] + b.width, width),
    top: Math.max(b.originY + place[1], 0), bottom: Math.min(b.originY + place[1] + b.height, height),
  })).filter((one) => one.left <= one.right && one.top <= one.bottom)
    .sort((one, other) => other.score - one.score);
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
//? not stretch
  for (const [width, height, wanted] of [[__FRAME_1__], [__FRAME_2__]]) {
    if (frame(width, height).join() !== wanted.join()) return [`differs: the frame of a picture of ${width} x ${height}`];
  }
//.
  const net = await open(__JS_EVERY__);
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
    const order = (one, other) => Math.round(1e4 * (other[2] - one[2])) || (one[1] < other[1] ? -1 : 1);
    got = got.map((one) => [one.index, one.label, one.score, one.left, one.top, one.right, one.bottom]).sort(order);
    wanted.sort(order);
    if (got.map((one) => one[1]).join("\n") !== wanted.map((one) => one[1]).join("\n")) return [__DIFFERS__];
    got = got.flatMap((one) => one.slice(2));
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
