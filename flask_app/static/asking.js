// What the views that are filled in share: what is typed is kept and counted, and cards ask with it.

import { $, alarm, config, post } from "./common.js";
import { Card, cards, clearCards, listenToCards, queue, reveal } from "./cards.js";

const KEPT = `typed ${config.view} ${config.name}`;

export const form = $("ask");
const fields = [...document.querySelectorAll("#ask [name]")];
const number = (count) => count.toLocaleString("en");

/** Answer to one filled-in form; `before` is a card whose answer stays until there is a new one. */
export class AskCard extends Card {
  constructor(name, content, before) {
    super(name);
    this.content = content;
    this.html = before?.html;
    if (!this.html) return;
    this.find(".card-answer").innerHTML = this.html;
    this.show("queued", before.element.querySelector(".card-sentence").textContent, "", []);
    this.element.dataset.stale = "";
  }

  begin() {
    if (this.html) this.state = this.element.dataset.state = "working";
    else super.begin();
  }

  send(signal) { return post("ask", this.content, {}, signal); }

  /** Shows the answer; its HTML comes from the server's templates, which escape it. */
  done({ answer, page, times, requestId }) {
    this.result = answer;
    this.html = page.html;
    this.show("done", page.sentence, page.note, []);
    this.element.toggleAttribute("data-unsure", !page.sure);
    this.find(".card-answer").innerHTML = page.html;
    this.fillTimes(times);
    this.find(".request").textContent = `Request ${requestId}.`;
    this.announce(page.sentence);
  }

  announce(sentence) { this.say(sentence); }

  show(state, ...rest) {
    super.show(state, ...rest);
    delete this.element.dataset.stale;
  }
}

/** Shows a card above the others, and asks. */
export function ask(card) {
  cards.unshift(card);
  $("cards").prepend(card.element);
  refresh();
  alarm("");
  queue.add(card);
  reveal(card.element);
}

export function refresh() {
  $("results").hidden = !cards.length;
  $("results-title").textContent = cards.length > 1 ? "Answers" : "Answer";
  document.body.classList.toggle("busy-page", cards.length > 0);
}

/** Listens to the cards, and to the button that removes them. */
export function listen(cleared = () => {}) {
  listenToCards();
  $("clear-results").addEventListener("click", () => {
    clearCards();
    cleared();
    refresh();
    fields[0].focus({ preventScroll: true });
  });
}

// ---- What is typed is kept -------------------------------------------------------------------

/** Fills the fields with what was typed in this tab; files cannot be kept. */
export function restore() {
  let kept = {};
  try {
    kept = JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
  } catch { /* it starts anew */ }
  for (const field of fields) {
    const value = kept[field.name];
    if (value === undefined || field.type === "file") continue;
    if (field.type === "checkbox") field.checked = value;
    else field.value = value;
  }
  fields.forEach(count);
  form.addEventListener("input", ({ target }) => {
    count(target);
    keep();
  });
}

/** Keeps what is typed. */
export function keep() {
  const values = fields.filter(({ type }) => type !== "file").map((field) =>
    [field.name, field.type === "checkbox" ? field.checked : field.value]);
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(values)));
  } catch {
    sessionStorage.removeItem(KEPT); // full
  }
}

/** Sets a field as if it had been typed. */
export function type(field, value) {
  field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

// ---- Limits ----------------------------------------------------------------------------------

const sizes = {
  characters: (text) => [...text].length, // code points, as the service counts them
  bytes: (text) => new TextEncoder().encode(text).length,
};

/** Returns what is wrong with a text in this field, in words; nothing if it can be sent. */
export function wrongWith(field, text) {
  const { most, unit = "characters" } = field.dataset;
  const size = sizes[unit](text);
  if (/\p{Surrogate}/u.test(text)) {
    return "It has half of a character in it, which cannot be read. Delete it, and type it again.";
  }
  return most && size > most ? `It has ${number(size)} ${unit}. The limit is ${number(Number(most))}.` : "";
}

export const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Shows how much of its limit a field has, and what is wrong with it. */
function count(field) {
  const shown = $(field.id.replace("field-", "count-"));
  if (!shown?.classList.contains("count")) return;
  shown.dataset.empty ??= shown.textContent;
  const { most, unit = "characters", lines } = field.dataset;
  const texts = lines === undefined ? [field.value] : linesOf(field.value);
  const longest = texts.reduce((a, b) => (b.length > a.length ? b : a), "");
  const wrong = texts.map((text) => wrongWith(field, text)).find(Boolean) ?? "";
  const each = texts.length > 1 ? `${number(texts.length)} texts, the longest: ` : "";
  const size = sizes[unit](longest);
  const calm = !most || (field.rows === 1 && 2 * size < most); // far from the limit of a short field
  const text = `${each}${number(size)} of ${number(Number(most))} ${unit}`;
  shown.textContent = wrong || (size && !calm ? text : shown.dataset.empty);
  shown.classList.toggle("bad", Boolean(wrong));
  if (wrong && !field.validationMessage) alarm(wrong);
  field.ariaInvalid = wrong ? "true" : null;
  if (lines === undefined) field.setCustomValidity(wrong);
}

