// The view for photos. They come in (choose, drop, paste, sample) and become cards, see cards.js. The
// words of answers and errors come from the server; only what it cannot know is worded here.

import {
  $, alarm, element, post, Problem, request, saveCsv, say, tryTo, unbroken,
} from "./common.js";
import { Card, cardOf, isOpen, Queue, RANKED, ranked, reveal } from "./cards.js";

const API_TYPES = new Set(["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp"]);
const METADATA = /Exif\0\0|eXIf|EXIF|XMP |adobe[.:]|Photoshop 3\.0|Raw profile type/; // may hold the place
const HISTORY_LENGTH = 24;
const THUMB_SIDE = 112;
const SMALL_BYTES = 200_000; // a file that is not made smaller
const PREVIEW_SIDE = 720; // a larger photo is shown from a copy of this short side
const MANY_LABELS = 60; // from then on the list scrolls

const tooLarge = () => new Problem(
  "This photo is too large.", `The limit is ${$("page").dataset.maxMb} MB. Choose a smaller photo.`,
);

// ---- Photos: made smaller in the browser, upright, without the place -------------------------

/**
 * Prepares a file to send and show: {blob, note, reduced, thumb, preview}. Throws Problem.
 * `side` is the short side in pixels to which the model resizes a photo.
 */
async function prepare(file, original, side) {
  if (!file.size) throw new Problem("This file is empty.", "Choose another one.");
  const content = await readable(file);
  const bitmap = await createImageBitmap(file).catch(() => null);
  const isPrivate = METADATA.test(content);
  const kept = isPrivate ? " It may contain the location and camera data." : "";
  const note = `The original file: ${sizeOf(bitmap, file)}, unchanged.${kept}`;
  const made = { blob: file, note, thumb: "" };
  if (bitmap) {
    const short = Math.min(bitmap.width, bitmap.height);
    const scale = (2 * side) / short;
    const shown = short > PREVIEW_SIDE ? draw(bitmap, PREVIEW_SIDE / short) : bitmap;
    if (shown !== bitmap) made.preview = await jpeg(shown, 0.85);
    made.thumb = draw(shown, THUMB_SIDE / Math.min(shown.width, shown.height))
      .toDataURL("image/jpeg", 0.75);
    const isLarge = scale < 0.8 && file.size > SMALL_BYTES;
    const copies = !original && (isLarge || !API_TYPES.has(file.type) || isPrivate);
    const canvas = copies && draw(bitmap, scale);
    const copy = canvas && await jpeg(canvas, 0.93);
    if (copy) {
      made.blob = copy;
      made.reduced = true;
      made.note = `A copy made in your browser: ${sizeOf(canvas, made.blob)}` +
        `${isPrivate ? ", without location and camera data" : ""}. ` +
        `The original (${sizeOf(bitmap, file)}) may get a different score.`;
    }
    bitmap.close();
  }
  if (made.blob.size > Number($("page").dataset.maxBytes)) throw tooLarge();
  return made;
}

const sizeOf = (picture, { size }) =>
  `${picture ? `${picture.width} × ${picture.height} pixels, ` : ""}${bytes(size)}`;

const bytes = (count) =>
  count < 1e6 ? `${Math.max(1, Math.round(count / 1e3))} KB` : `${(count / 1e6).toFixed(1)} MB`;

/** Reads as much of a file as can be sent, as text. Throws Problem if it cannot be read (a folder). */
async function readable(file) {
  try {
    const content = await file.slice(0, Number($("page").dataset.maxBytes)).arrayBuffer();
    return new TextDecoder("latin1").decode(content);
  } catch {
    throw new Problem("This file cannot be read.", "Choose it again, or the photos in it if it is a folder.");
  }
}

const jpeg = (canvas, quality) =>
  new Promise((done) => { canvas.toBlob(done, "image/jpeg", quality); });

/** Draws the image on a white canvas; never enlarges it. */
function draw(bitmap, scale) {
  const factor = Math.min(1, scale);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * factor));
  canvas.height = Math.max(1, Math.round(bitmap.height * factor));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

// ---- Cards -----------------------------------------------------------------------------------

class PhotoCard extends Card {
  verb = "Classifying";

  constructor(queue, file) {
    super(queue, file.name || "pasted photo");
    this.file = file;
    this.original = false;
    this.preview(file);
  }

  preview(blob) {
    const image = this.find(".card-photo img");
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(blob);
    image.alt = this.name;
    image.onerror = () => image.removeAttribute("src"); // HEIC, say: the name stays
    image.src = this.url;
  }

  async prepare() {
    this.sent = await prepare(this.file, this.original, this.panel.model?.side ?? 224);
    if (this.sent.preview) this.preview(this.sent.preview);
  }

  send(signal) {
    const { blob } = this.sent;
    const type = blob.type.startsWith("image/") ? blob.type : "application/octet-stream";
    return post(`classify${this.panel.config.query}`, blob, { "Content-Type": type }, signal);
  }

  done({ answer, page, times, requestId }) {
    this.result = { ...page, answer };
    this.show("done", page.sentence, page.note, []);
    this.element.toggleAttribute("data-unsure", !page.sure);
    this.find(".bars").replaceChildren(...page.bars.map((bar) => this.bar(bar)));
    this.fillDetails(answer, times, requestId);
    resetFeedback(this.find(".feedback"), page.feedback_token);
    this.say(`${page.sentence}${this.queue.progress()}`);
    this.queue.remember(this);
  }

  bar({ label, percent, width }) {
    const bar = this.panel.$("bar-template").content.firstElementChild.cloneNode(true);
    bar.querySelector(".bar-label").textContent = label;
    bar.querySelector(".bar-percent").textContent = percent;
    bar.querySelector("rect").setAttribute("width", `${width}%`);
    return bar;
  }

  remove() {
    super.remove();
    URL.revokeObjectURL(this.url);
  }

  fillCode(selector, placeholder, text) {
    const code = this.find(selector);
    if (code) code.textContent = code.textContent.replace(placeholder, () => text);
  }

  fillDetails(answer, times, requestId) {
    this.fillTimes(times);
    this.find(".sent").textContent = this.sent.note;
    this.button("original").hidden = !this.sent.reduced;
    const { model } = this.panel;
    const { title, backend, device, provider, precision, precision_reason: reason } = model ?? {};
    const runtime = [backend, device].filter(Boolean).join(" on ");
    const known = [title, runtime].filter(Boolean).join(", ") || "Unknown";
    const computed = precision ? `, in ${precision}${reason ? `: ${reason}` : ""}` : "";
    this.find(".model").textContent =
      `${known}${provider ? ` (${provider})` : ""}${computed}. Request ${requestId}.`;
    this.fillCode(".curl", "PHOTO'", `${this.name.replaceAll("'", "'\\''")}'`);
    this.fillCode(".curl", "IMAGE/TYPE", this.file.type || "application/octet-stream");
    this.fillCode(".python", '"PHOTO"', JSON.stringify(this.name));
    this.find(".json").textContent = JSON.stringify(answer, null, 2)
      .replace(/\{\s+("label": [^\n]+)\s+("probability": [^\n]+)\s+\}/g, "{ $1 $2 }");
  }
}

// ---- Photos come in --------------------------------------------------------------------------

/** Returns the images of a drop: files, or a data: URL in another page's text. Throws Problem. */
async function dropped(transfer) {
  if (transfer.files.length) return [...transfer.files];
  const markup = new DOMParser().parseFromString(transfer.getData("text/html"), "text/html");
  const address = markup.querySelector("img")?.getAttribute("src")
    ?? transfer.getData("text/uri-list").split(/\r?\n/).find((line) => line && line[0] !== "#");
  const [, type, coded] = /^data:(image\/[\w.+-]+);base64,(.+)$/s.exec(address ?? "") ?? [];
  if (type) {
    const content = Uint8Array.from(atob(coded), (letter) => letter.codePointAt(0));
    return [new File([content], "dropped photo", { type })];
  }
  if (address && new URL(address, location.href).origin === location.origin) {
    return [await fetched(address)];
  }
  if (!address) throw new Problem("There is no image in what you dropped.", "Drop or choose a photo.");
  throw new Problem(
    "Your browser passed on only the image's address.",
    "Copy the image and paste it here, or save it and choose the file.",
  );
}

async function fetched(address) {
  const response = await request(address, { cache: "default" });
  const blob = await response.blob();
  return new File([blob], new URL(address, location.href).pathname.split("/").pop(), blob);
}

const KINDS = ["Files", "text/uri-list", "text/html"];
const brings = (event) => KINDS.some((kind) => event.dataTransfer?.types.includes(kind));

// ---- Feedback --------------------------------------------------------------------------------

/** Adds the labels to a feedback form that the server rendered before it knew them. */
function offerLabels(within, labels) {
  const select = within.querySelector("select");
  if (select?.length !== 2) return; // "choose ..." and "none of these"
  select.options[0].after(...labels.map((label) => element("option", label)));
}

function resetFeedback(form, token) {
  if (!form) return;
  form.reset();
  form.elements.token.value = token ?? "";
  form.hidden = !token;
  feedbackStep(form, "ask");
}

/** Shows one step: `ask` (right or wrong), `choice` (which label), `thanks` (saved, with undo). */
function feedbackStep(form, step, text = "") {
  const [ask, choice, thanks] = form.querySelectorAll(".feedback-row");
  ask.hidden = step === "thanks";
  choice.hidden = step !== "choice";
  thanks.hidden = !text;
  thanks.querySelector("span").textContent = text;
  thanks.querySelector("button").hidden = step !== "thanks";
  form.querySelector('[data-do="wrong"]').ariaExpanded = String(step === "choice");
}

function openChoice(card, button) {
  const form = card.find(".feedback");
  const open = button.ariaExpanded !== "true";
  feedbackStep(form, open ? "choice" : "ask");
  if (open) form.elements.corrected.focus();
}

async function sendFeedback(card, form, submitter) {
  const data = new FormData(form, submitter);
  const wrong = submitter.value === "wrong";
  if (wrong && !data.get("corrected")) {
    form.elements.corrected.focus();
    return;
  }
  if ("keepsPhotos" in form.dataset) data.set("photo", card.sent.blob, "photo");
  await postFeedback(form, form.action, data, wrong ? "choice" : "ask", "thanks");
  if (!form.querySelector(".feedback-thanks").hidden) card.button("undo").focus();
}

async function undo(card) {
  const form = card.find(".feedback");
  const data = new FormData();
  data.set("token", form.elements.token.value);
  await postFeedback(form, "feedback/undo", data, "thanks", "ask");
  form.querySelector("button").focus();
}

async function postFeedback(form, url, data, before, after) {
  try {
    const { answer } = await post(url, data);
    feedbackStep(form, after, answer.detail);
    say(answer.detail);
  } catch (problem) {
    const text = `${problem.title ?? "That did not work."} ${problem.advice ?? ""}`;
    feedbackStep(form, before, text);
    alarm(text);
  }
}

// ---- The view --------------------------------------------------------------------------------

/** The photos of a panel. */
class Photos extends Queue {
  constructor(panel) {
    super(panel);
    this.kept = `history ${panel.config.name}`;
  }

  progress() {
    const open = this.cards.filter(isOpen).length;
    return this.cards.length > 1 ? ` (${this.cards.length - open} of ${this.cards.length})` : "";
  }

  take(files) {
    if (!files.length) return;
    const fresh = [...files].map((file) => new PhotoCard(this, file));
    this.cards.unshift(...fresh);
    this.panel.$("cards").prepend(...fresh.map((card) => card.element));
    this.refresh();
    say(fresh.length > 1 ? `Classifying ${fresh.length} photos` : `Classifying ${fresh[0].name}`);
    alarm("");
    fresh.forEach((card) => this.add(card));
    reveal(fresh[0].element);
  }

  refresh() {
    super.refresh();
    this.panel.$("csv").hidden = this.cards.length < 2;
  }

  downloadCsv() {
    const rows = this.cards.map((card) => [card.name, ...ranked(card)]);
    saveCsv(["photo", ...RANKED], rows, `${this.panel.config.name || "photos"}.csv`);
  }

  history() {
    try {
      return JSON.parse(sessionStorage.getItem(this.kept)) ?? [];
    } catch {
      return [];
    }
  }

  remember(card) {
    card.entry = `${Date.now()} ${Math.random()}`;
    const { name, result: { sentence }, sent: { thumb } } = card;
    const entry = { id: card.entry, name, sentence, thumb };
    try {
      const entries = [entry, ...this.history()].slice(0, HISTORY_LENGTH);
      sessionStorage.setItem(this.kept, JSON.stringify(entries));
    } catch {
      sessionStorage.removeItem(this.kept); // full: it starts anew
    }
    this.showHistory();
  }

  /** Shows the earlier answers that have no card on the page. */
  showHistory() {
    const shown = new Set(this.cards.map((card) => card.entry));
    const entries = this.history().filter(({ id }) => !shown.has(id));
    this.panel.$("history").hidden = !entries.length;
    this.panel.$("history-list").replaceChildren(...entries.map(({ name, sentence, thumb }) => {
      const item = element("li", "");
      const image = element("img", "");
      image.alt = "";
      if (thumb) image.src = thumb;
      const text = element("div", "");
      text.append(element("p", ""), element("p", name, "small"));
      text.firstChild.append(...unbroken(sentence));
      item.append(image, text);
      return item;
    }));
  }

  /** Shows what the service says of its model. */
  describe({ heading, lead, labels, samples }) {
    const { panel } = this;
    for (const part of panel.element.querySelectorAll(".of-samples")) part.toggleAttribute("hidden", !samples);
    if (heading && heading !== panel.$("heading").textContent) {
      panel.$("heading").textContent = heading;
      panel.$("lead").textContent = lead;
      if (panel.isShown) document.title = heading;
    }
    if (!labels.length) return;
    panel.$("labels").replaceChildren(...labels.map((label) => element("li", label)));
    if (labels.length > MANY_LABELS) panel.$("labels").tabIndex = 0;
    panel.$("label-count").textContent = labels.length;
    panel.element.querySelector(".knows").hidden = false;
    offerLabels(panel.$("card-template").content, labels);
  }

  listen() {
    const { panel } = this;
    super.listen({
      original: (card) => { card.original = true; card.again(); },
      wrong: (card, button) => openChoice(card, button),
      undo: (card) => undo(card),
    });
    panel.$("cards").addEventListener("submit", (event) => {
      const card = cardOf.get(event.target.closest(".card"));
      if (!card) return;
      event.preventDefault();
      sendFeedback(card, event.target, event.submitter);
    });
    panel.$("csv").addEventListener("click", () => this.downloadCsv());
    panel.$("clear-results").addEventListener("click", () => {
      this.clear();
      this.refresh();
      this.showHistory();
      panel.$("photos").focus({ preventScroll: true });
    });
    panel.$("clear-history").addEventListener("click", () => {
      sessionStorage.removeItem(this.kept);
      this.showHistory();
      panel.$("photos").focus({ preventScroll: true });
    });
  }

  listenForPhotos() {
    const { panel } = this;
    for (const input of [panel.$("photos"), panel.$("camera")]) {
      input.addEventListener("change", () => {
        this.take([...input.files]);
        input.value = "";
      });
    }
    const samples = panel.element.querySelector(".samples");
    samples.addEventListener("click", (event) => {
      if (event.detail > 1) event.preventDefault(); // a double click is meant once
    });
    samples.addEventListener("submit", tryTo(async (event) => {
      event.preventDefault();
      this.take([await fetched(event.submitter.querySelector("img").src)]);
    }));
    const on = (type, action) => addEventListener(type, (event) => panel.isShown && action(event));
    const veil = panel.$("veil");
    on("paste", (event) => this.take(event.clipboardData?.files ?? []));
    on("dragover", (event) => {
      if (!brings(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      veil.hidden = false;
    });
    on("dragleave", (event) => { if (!event.relatedTarget) veil.hidden = true; });
    on("dragend", () => { veil.hidden = true; });
    on("drop", tryTo(async (event) => {
      veil.hidden = true;
      if (!brings(event)) return;
      event.preventDefault();
      this.take(await dropped(event.dataTransfer));
    }));
  }
}

export function start(panel) {
  const photos = new Photos(panel);
  panel.onModel = (model) => photos.describe(model);
  photos.listenForPhotos();
  photos.listen();
  photos.showHistory();
}
