// The page's only script. Photos come in (choose, drop, paste, sample), become cards, go through a
// queue three at a time, and each card shows its own answer. The words of answers and errors come
// from the server; only what the server cannot know (offline, waiting) is worded here.

const PARALLEL = 3;
const SPINNER_MS = 300;
const SLOW_MS = 3000;
const BUSY_TRIES = 20;
const WATCH_MS = 2000; // while the service is not ready
const CALM_MS = 30000; // while it is
const API_TYPES = new Set(["image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp"]);
const METADATA = /Exif\0\0|eXIf|EXIF|ns\.adobe\.com\/xap/; // may hold the place
const METADATA_BYTES = 2 ** 21;
const HISTORY_KEY = "history";
const HISTORY_LENGTH = 24;
const THUMB_SIDE = 112;
const PREVIEW_SIDE = 720; // a larger photo is shown from a copy of this short side
const MANY_LABELS = 60; // from then on the list scrolls

const $ = (id) => document.getElementById(id);
const config = $("page").dataset;
const say = (text) => { $("say").textContent = text; };
const alarm = (text) => { $("alarm").textContent = text; };

/** Error in words: cause and advice; with `waits`, the card retries when the service is ready. */
class Problem extends Error {
  constructor(title, advice, { code = "", retryAfter = 0, waits = "" } = {}) {
    super(title);
    Object.assign(this, { title, advice, code, retryAfter, waits });
  }
}

const tooLarge = () => new Problem(
  "This photo is too large.", `The limit is ${config.maxMb} MB. Choose a smaller photo.`,
);

// ---- Photos: made smaller in the browser, upright, without the place -------------------------

/** Prepares a file to send and show: {blob, note, reduced, thumb, preview}. Throws Problem. */
async function prepare(file, original) {
  if (!file.size) throw new Problem("This file is empty.", "Choose another one.");
  const head = await readable(file);
  const bitmap = await createImageBitmap(file).catch(() => null);
  const made = { blob: file, note: `The file as it is: ${sizeOf(bitmap, file)}.`, thumb: "" };
  if (bitmap) {
    const short = Math.min(bitmap.width, bitmap.height);
    const scale = (2 * service.side) / short;
    const shown = short > PREVIEW_SIDE ? draw(bitmap, PREVIEW_SIDE / short) : bitmap;
    if (shown !== bitmap) made.preview = await jpeg(shown, 0.85);
    made.thumb = draw(shown, THUMB_SIDE / Math.min(shown.width, shown.height))
      .toDataURL("image/jpeg", 0.75);
    if (!original && (scale < 0.8 || !API_TYPES.has(file.type) || METADATA.test(head))) {
      const canvas = draw(bitmap, scale);
      made.blob = await jpeg(canvas, 0.93) ?? file;
      made.reduced = true;
      made.note = `A copy made in your browser: ${sizeOf(canvas, made.blob)}, without place and ` +
        `camera data. The original has ${sizeOf(bitmap, file)}; it can give another score.`;
    }
    bitmap.close();
  }
  if (made.blob.size > Number(config.maxBytes)) throw tooLarge();
  return made;
}

const sizeOf = (picture, { size }) =>
  `${picture ? `${picture.width} × ${picture.height} pixels, ` : ""}${bytes(size)}`;

const bytes = (count) =>
  count < 1e6 ? `${Math.max(1, Math.round(count / 1e3))} KB` : `${(count / 1e6).toFixed(1)} MB`;

/** Reads the beginning of a file as text. Throws Problem if it cannot be read (a folder). */
async function readable(file) {
  try {
    const head = await file.slice(0, METADATA_BYTES).arrayBuffer();
    return new TextDecoder("latin1").decode(head);
  } catch {
    throw new Problem("This file cannot be read.", "Choose it again.");
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

// ---- Asking the server -----------------------------------------------------------------------

/** Returns {answer, page, times, requestId} of a blob. Throws Problem, AbortError if cancelled. */
async function classify(blob, signal) {
  const type = blob.type.startsWith("image/") ? blob.type : "application/octet-stream";
  const headers = { "Content-Type": type, Accept: "application/json" };
  const start = performance.now();
  const response = await request("classify", { method: "POST", body: blob, headers, signal });
  const { page, ...answer } = await body(response);
  if (!response.ok) throw problemOf(response, answer, page);
  const times = timesOf(response.headers.get("Server-Timing") ?? "", performance.now() - start);
  return { answer, page, times, requestId: response.headers.get("X-Request-ID") };
}

/** Calls fetch; throws Problem when the connection is lost. */
async function request(url, options) {
  try {
    return await fetch(url, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw navigator.onLine
      ? new Problem("This page's server does not answer.", "", { waits: "offline" })
      : new Problem("You are offline.", "", { waits: "offline" });
  }
}

async function body(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response.status === 413) throw tooLarge();
    throw new Problem("The server gave an answer that makes no sense.", "Try again in a moment.");
  }
}

function problemOf(response, answer, page) {
  const code = answer.code ?? "";
  const waits = { api_unreachable: "down", unavailable: "loading" }[code] ?? "";
  const retryAfter = response.status === 503 && !waits
    ? Math.min(60, Math.max(1, Number(response.headers.get("Retry-After")) || 2))
    : 0;
  return new Problem(page?.title ?? answer.detail, page?.advice ?? "", { code, retryAfter, waits });
}

/** Returns [[part, ms], ...] from a Server-Timing header and the time the browser measured. */
function timesOf(header, elapsed) {
  const measured = new Map(
    [...header.matchAll(/([\w-]+)[^,]*?;dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]),
  );
  const parts = ["decode", "queue", "infer"].map((name) => [name, measured.get(name) ?? 0]);
  const inside = parts.reduce((sum, [, ms]) => sum + ms, 0);
  return [...parts, ["network", Math.max(0, elapsed - inside)]];
}

// ---- The service: ready, loading, down; watched until it is back -----------------------------

const service = {
  state: "unknown",
  side: 224,
  model: null,
  timer: 0,

  /** Asks the server, shows what it says, and asks again later. */
  async watch() {
    clearTimeout(this.timer);
    try {
      const response = await request("status", {});
      const { state, model } = await body(response);
      if (model) this.learn(model);
      this.show(state);
    } catch {
      this.show("offline");
    }
    this.timer = setTimeout(() => this.watch(), this.state === "ready" ? CALM_MS : WATCH_MS);
  },

  closed() { return ["loading", "down", "offline"].includes(this.state); },

  /** Shows the state that a card found, and asks again soon. */
  lost(state) {
    this.show(state);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.watch(), WATCH_MS / 2);
  },

  learn(model) {
    this.model = model;
    this.side = model.side;
    if (!model.labels.length) return;
    $("labels").replaceChildren(...model.labels.map((label) => element("li", label)));
    if (model.labels.length > MANY_LABELS) $("labels").tabIndex = 0;
    $("label-count").textContent = model.labels.length;
    document.querySelector(".knows").hidden = false;
    offerLabels($("card-template").content, model.labels);
  },

  show(state) {
    const before = this.state;
    const wasClosed = this.closed();
    const text = {
      ready: `Ready${this.model ? `: ${modelText(this.model)}` : ""}`,
      loading: "The model is loading. Photos go in as soon as it is ready.",
      down: "The classifier cannot be reached. This page keeps looking.",
      offline: navigator.onLine
        ? "This page's server does not answer. This page keeps looking."
        : "You are offline. Photos go in when you are back.",
    }[state];
    this.state = $("service").dataset.state = state;
    $("service").hidden = false;
    $("service-text").textContent = text;
    if (state === "ready") {
      if (wasClosed) {
        say("The classifier is ready.");
        alarm("");
      }
      queue.resume();
    } else if (before !== state) {
      alarm(text);
    }
  },
};

/** Adds the labels to a feedback form that the server rendered before it knew them. */
function offerLabels(within, labels) {
  const select = within.querySelector("select");
  if (select?.length !== 2) return; // "choose ..." and "none of these"
  select.options[0].after(...labels.map((label) => element("option", label)));
}

const modelText = ({ title, backend, device }) =>
  [title, [backend, device].filter(Boolean).join(" on ")].filter(Boolean).join(", ");

/** Returns text nodes in which a line does not break within "Rice 37 %". */
const unbroken = (text) => text.split(/(\S+ [<>]?\d+ %,?)/).map((part, odd) =>
  (odd % 2 ? element("span", part, "together") : part));

// ---- Cards -----------------------------------------------------------------------------------

const cards = []; // newest group first, as on the page
const cardOf = new WeakMap();

class Card {
  constructor(file) {
    this.file = file;
    this.name = file.name || "pasted photo";
    this.original = false;
    this.element = $("card-template").content.firstElementChild.cloneNode(true);
    this.element.tabIndex = -1;
    cardOf.set(this.element, this);
    this.find(".card-name").textContent = this.name;
    this.preview(file);
    this.show("queued", "Waiting for its turn", "", ["cancel"]);
  }

  find(selector) { return this.element.querySelector(selector); }

  button(action) { return this.find(`[data-do="${action}"]`); }

  preview(blob) {
    const image = this.find(".card-photo img");
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(blob);
    image.alt = this.name;
    image.onerror = () => image.removeAttribute("src"); // HEIC, say: the name stays
    image.src = this.url;
  }

  show(state, sentence, note, actions) {
    this.state = this.element.dataset.state = state;
    this.element.classList.remove("spinning");
    this.find(".card-sentence").replaceChildren(...unbroken(sentence));
    this.find(".card-note").textContent = note;
    this.offer(actions);
  }

  /** Shows these buttons only; keeps the focus in the card when its button disappears. */
  offer(actions) {
    for (const action of ["cancel", "retry"]) {
      const button = this.button(action);
      const hide = !actions.includes(action);
      if (hide && button === document.activeElement) this.element.focus({ preventScroll: true });
      button.hidden = hide;
    }
  }

  /** Takes the card from the queue to an answer, a failure, or waiting for the service. */
  async work() {
    this.abort = new AbortController();
    this.show("working", "\u00a0", "", []);
    const spin = setTimeout(() => this.spin("Classifying …"), SPINNER_MS);
    const slow = setTimeout(() => this.spin("Still working …"), SLOW_MS);
    try {
      this.sent = await prepare(this.file, this.original);
      if (this.sent.preview) this.preview(this.sent.preview);
      this.done(await this.ask());
    } catch (problem) {
      this.failed(problem);
    } finally {
      clearTimeout(spin);
      clearTimeout(slow);
    }
  }

  spin(text) {
    if (this.state !== "working") return;
    this.show("working", text, "", ["cancel"]);
    this.element.classList.add("spinning");
  }

  /** Asks, and asks again while the service is busy. */
  async ask() {
    for (let tries = 1; ; tries += 1) {
      this.abort.signal.throwIfAborted();
      try {
        return await classify(this.sent.blob, this.abort.signal);
      } catch (problem) {
        if (!problem.retryAfter || tries >= BUSY_TRIES) throw problem;
        await this.countDown(problem.retryAfter);
        this.spin("Classifying …");
      }
    }
  }

  async countDown(seconds) {
    const text = (left) => `Busy, trying again in ${left} s`;
    this.show("waiting", text(seconds), "", ["cancel"]);
    say(`${this.name}: ${text(seconds)}`);
    for (let left = seconds; left > 0; left -= 1) {
      this.find(".card-sentence").textContent = text(left);
      await pause(1000, this.abort.signal);
    }
    this.state = this.element.dataset.state = "working";
  }

  done({ answer, page, times, requestId }) {
    this.result = { ...page, answer };
    const note = page.sure
      ? ""
      : "The scores are low or close together. It may be something else, or no food at all.";
    this.show("done", page.sentence, note, []);
    this.element.toggleAttribute("data-unsure", !page.sure);
    this.find(".bars").replaceChildren(...page.bars.map(barOf));
    this.fillDetails(answer, times, requestId);
    resetFeedback(this.find(".feedback"), page.feedback_token);
    say(`${this.name}: ${page.sentence}${progress()}`);
    remember(this);
  }

  failed(problem) {
    if (problem.name === "AbortError") {
      this.show("cancelled", "Cancelled", "", ["retry"]);
      say(`${this.name}: cancelled`);
    } else if (problem.waits) {
      const note = "The photo stays here and goes in by itself when that is over.";
      this.show("waiting", problem.title, note, ["retry", "cancel"]);
      service.lost(problem.waits);
    } else {
      if (!(problem instanceof Problem)) console.error(problem);
      const { title = "Something went wrong in the page.", advice = "Try again." } = problem;
      this.show("failed", title, advice, ["retry"]);
      alarm(`${this.name}: ${title} ${advice}`);
    }
  }

  cancel() {
    queue.drop(this);
    if (queue.working.has(this)) this.abort.abort();
    else this.failed(new DOMException("", "AbortError"));
  }

  remove() {
    if (this.state !== "done") this.cancel();
    URL.revokeObjectURL(this.url);
    this.element.remove();
  }

  fillCode(selector, placeholder, text) {
    const code = this.find(selector);
    code.textContent = code.textContent.replace(placeholder, () => text);
  }

  fillDetails(answer, times, requestId) {
    fillTimes(this.find(".times"), this.find(".times-legend"), times);
    this.find(".sent").textContent = this.sent.note;
    this.button("original").hidden = !this.sent.reduced;
    const known = service.model ? modelText(service.model) : "Unknown";
    const { provider, precision, precision_reason: reason } = service.model ?? {};
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

const progress = () => {
  const open = cards.filter((card) => !["done", "failed", "cancelled"].includes(card.state)).length;
  return cards.length > 1 ? ` (${cards.length - open} of ${cards.length})` : "";
};

function barOf({ label, percent, width }) {
  const bar = $("bar-template").content.firstElementChild.cloneNode(true);
  bar.querySelector(".bar-label").textContent = label;
  bar.querySelector(".bar-percent").textContent = percent;
  bar.querySelector("rect").setAttribute("width", `${width}%`);
  return bar;
}

function fillTimes(scale, legend, times) {
  const names = { infer: "inference", network: "network and page" };
  const total = times.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  let x = 0;
  scale.replaceChildren(...times.map(([part, ms]) => {
    const width = (100 * ms) / total;
    x += width;
    return svg("rect", {
      class: `part-${part}`, x: `${x - width}%`, width: `${width}%`, height: "100%",
    });
  }));
  legend.replaceChildren(...times.map(([part, ms]) => {
    const key = svg("svg", { "aria-hidden": "true" });
    key.append(svg("rect", { class: `part-${part}`, width: "100%", height: "100%" }));
    const item = element("li", "");
    item.append(key, `${names[part] ?? part} ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`);
    return item;
  }));
}

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

const pause = (ms, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); fail(signal.reason); });
});

// ---- The queue: three at a time --------------------------------------------------------------

const queue = {
  waiting: [],
  working: new Set(),

  add(card) {
    if (!this.waiting.includes(card)) this.waiting.push(card);
    this.pump();
  },

  drop(card) { this.waiting = this.waiting.filter((other) => other !== card); },

  pump() {
    const closed = service.closed();
    while (!closed && this.waiting.length && this.working.size < PARALLEL) {
      this.start(this.waiting.shift());
    }
  },

  start(card) {
    this.working.add(card);
    card.work().finally(() => {
      this.working.delete(card);
      this.pump();
    });
  },

  /** Adds the cards that waited for the service to the queue; called when it is ready. */
  resume() {
    for (const card of cards) {
      if (card.state === "waiting" && !this.working.has(card)) this.add(card);
    }
    this.pump();
  },
};

// ---- Photos come in --------------------------------------------------------------------------

function take(files) {
  if (!files.length) return;
  const fresh = [...files].map((file) => new Card(file));
  cards.unshift(...fresh);
  $("cards").prepend(...fresh.map((card) => card.element));
  refresh();
  say(fresh.length > 1 ? `Classifying ${fresh.length} photos` : `Classifying ${fresh[0].name}`);
  alarm("");
  fresh.forEach((card) => queue.add(card));
  if (service.closed()) {
    fresh.forEach((card) => card.show(
      "waiting", $("service-text").textContent, "The photo stays here.", ["retry", "cancel"],
    ));
  }
  fresh[0].element.scrollIntoView({
    block: "nearest",
    behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
  });
}

function refresh() {
  $("results").hidden = !cards.length;
  $("csv").hidden = cards.length < 2;
  $("results-title").textContent = cards.length > 1 ? "Answers" : "Answer";
  document.body.classList.toggle("busy-page", cards.length > 0);
}

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
  if (!address) throw new Problem("There is no picture in that.", "Drop a photo, or choose one.");
  throw new Problem(
    "Your browser handed over only the address of that picture.",
    "Copy the picture and paste it here, or save it and choose the file.",
  );
}

async function fetched(address) {
  const response = await request(address, { cache: "default" });
  const blob = await response.blob();
  return new File([blob], new URL(address, location.href).pathname.split("/").pop(), blob);
}

/** Shows a problem that belongs to no card. */
function complain(problem) {
  document.querySelector(".problem")?.remove();
  const box = element("div", "", "problem");
  box.append(element("strong", problem.title ?? "That did not work."), ` ${problem.advice ?? ""}`);
  document.querySelector("main").prepend(box);
  alarm(box.textContent);
}

const tryTo = (action) => async (event) => {
  try {
    document.querySelector(".problem")?.remove();
    await action(event);
  } catch (problem) {
    complain(problem);
  }
};

function listenForPhotos() {
  for (const input of [$("photos"), $("camera")]) {
    input.addEventListener("change", () => {
      take([...input.files]);
      input.value = "";
    });
  }
  document.querySelector(".samples").addEventListener("click", (event) => {
    if (event.detail > 1) event.preventDefault(); // a double click is meant once
  });
  document.querySelector(".samples").addEventListener("submit", tryTo(async (event) => {
    event.preventDefault();
    take([await fetched(event.submitter.querySelector("img").src)]);
  }));
  document.addEventListener("paste", (event) => take(event.clipboardData?.files ?? []));
  const kinds = ["Files", "text/uri-list", "text/html"];
  const brings = (event) => kinds.some((kind) => event.dataTransfer?.types.includes(kind));
  addEventListener("dragover", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    $("veil").hidden = false;
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("veil").hidden = true; });
  addEventListener("dragend", () => { $("veil").hidden = true; });
  addEventListener("drop", tryTo(async (event) => {
    $("veil").hidden = true;
    if (!brings(event)) return;
    event.preventDefault();
    take(await dropped(event.dataTransfer));
  }));
}

// ---- What cards can do -----------------------------------------------------------------------

const actions = {
  cancel: (card) => card.cancel(),
  retry: (card) => again(card),
  original: (card) => { card.original = true; again(card); },
  copy: (_, button) => copy(button),
  wrong: (card, button) => openChoice(card, button),
  undo: (card) => undo(card),
};

function again(card) {
  if (service.state !== "ready") service.watch();
  card.show("queued", "Waiting for its turn", "", ["cancel"]);
  queue.drop(card);
  if (!queue.working.has(card)) queue.start(card);
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  getSelection().selectAllChildren(code); // where the clipboard is closed to scripts: Ctrl+C
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Selected: press Ctrl+C";
  }
  say(button.textContent);
}

// ---- Feedback --------------------------------------------------------------------------------

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
  await postFeedback(form, `${form.action}/undo`, data, "thanks", "ask");
  form.querySelector("button").focus();
}

async function postFeedback(form, url, data, before, after) {
  try {
    const headers = { Accept: "application/json" };
    const response = await request(url, { method: "POST", body: data, headers });
    const { page, ...answer } = await body(response);
    if (!response.ok) throw problemOf(response, answer, page);
    feedbackStep(form, after, answer.detail);
    say(answer.detail);
  } catch (problem) {
    const text = `${problem.title ?? "That did not work."} ${problem.advice ?? ""}`;
    feedbackStep(form, before, text);
    alarm(text);
  }
}

function listenToCards() {
  $("cards").addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    const card = button && cardOf.get(button.closest(".card"));
    if (card) actions[button.dataset.do](card, button);
  });
  $("cards").addEventListener("submit", (event) => {
    const card = cardOf.get(event.target.closest(".card"));
    if (!card) return;
    event.preventDefault();
    sendFeedback(card, event.target, event.submitter);
  });
  $("csv").addEventListener("click", downloadCsv);
  $("clear-results").addEventListener("click", () => {
    cards.splice(0).forEach((card) => card.remove());
    $("cards").replaceChildren();
    refresh();
    showHistory();
    $("photos").focus({ preventScroll: true });
  });
  $("clear-history").addEventListener("click", () => {
    sessionStorage.removeItem(HISTORY_KEY);
    showHistory();
    $("photos").focus({ preventScroll: true });
  });
}

// ---- CSV and history -------------------------------------------------------------------------

/** Formats a cell; escapes a first character that makes spreadsheets see a formula. */
const cell = (value) => {
  const text = String(value);
  return `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll("\"", "\"\"")}"`;
};

function downloadCsv() {
  const rows = cards.map(({ name, state, result, element: shown }) => {
    const top = state === "done" ? result.answer.top.slice(0, 2) : [];
    const pairs = [0, 1].flatMap((i) => [top[i]?.label ?? "", top[i]?.probability ?? ""]);
    const said = shown.querySelector(".card-sentence").textContent;
    return [name, state, ...pairs, said].map(cell).join(",");
  });
  const head = "photo,state,prediction,probability,second,second_probability,sentence";
  const file = new Blob(["\ufeff", [head, ...rows, ""].join("\r\n")], { type: "text/csv" });
  const link = element("a", "");
  link.href = URL.createObjectURL(file);
  link.download = "food.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), CALM_MS);
}

function readHistory() {
  try {
    return JSON.parse(sessionStorage.getItem(HISTORY_KEY)) ?? [];
  } catch {
    return [];
  }
}

function remember(card) {
  card.entry = `${Date.now()} ${Math.random()}`;
  const { name, result: { sentence }, sent: { thumb } } = card;
  const entry = { id: card.entry, name, sentence, thumb };
  try {
    const entries = [entry, ...readHistory()].slice(0, HISTORY_LENGTH);
    sessionStorage.setItem(HISTORY_KEY, JSON.stringify(entries));
  } catch {
    sessionStorage.removeItem(HISTORY_KEY); // full: it starts anew
  }
  showHistory();
}

/** Shows the earlier answers that have no card on the page. */
function showHistory() {
  const shown = new Set(cards.map((card) => card.entry));
  const entries = readHistory().filter(({ id }) => !shown.has(id));
  $("history").hidden = !entries.length;
  $("history-list").replaceChildren(...entries.map(({ name, sentence, thumb }) => {
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

document.documentElement.classList.add("scripted");
listenForPhotos();
listenToCards();
showHistory();
addEventListener("online", () => service.watch());
addEventListener("offline", () => service.show("offline"));
service.watch();
