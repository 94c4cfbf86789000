// The view for texts: each line is classified as one stops typing, and has its own card.

import { $, alarm, begin, complain, config, Problem, say, saveCsv } from "./common.js";
import { cards, isOpen, queue, RANKED, ranked } from "./cards.js";
import { AskCard, form, keep, linesOf, listen, refresh, restore, type, wrongWith } from "./asking.js";

const TYPED_MS = 300;
const MOST_LINES = 200;
const MOST_KNOWN = 1000;
const known = new Map(); // answers by what was asked, so that only new lines are asked
const field = form.elements.text;

class TextCard extends AskCard {
  verb = "Classifying";

  constructor(line, more, before) {
    const content = new FormData(form);
    content.set("text", line);
    super(line, content, before);
    this.key = keyOf(line, more);
  }

  async prepare() {
    const wrong = wrongWith(field, this.name);
    if (wrong) throw new Problem("This text cannot be sent.", wrong, { final: true });
  }

  done(answered) {
    super.done(answered);
    if (known.size >= MOST_KNOWN) known.clear();
    known.set(this.key, answered);
  }

  announce(sentence) {
    if (cards.some(isOpen)) return;
    say(cards.length > 1 ? `${cards.length} texts are classified` : sentence);
  }
}

const keyOf = (line, more) => JSON.stringify([line, more]);

/** Returns what is filled in beside the text, which is part of every request. */
const others = () => [...new FormData(form)].filter(([name]) => name !== "text");

/** Makes the cards those of the lines; a line that has changed keeps its place. */
function classify() {
  const all = linesOf(field.value);
  const lines = all.slice(0, MOST_LINES);
  const more = others();
  alarm("");
  document.querySelector(".problem")?.remove();
  if (all.length > lines.length) {
    complain(new Problem(`Only the first ${MOST_LINES} lines are classified.`, "Then do the others."));
  }
  cards.splice(lines.length).forEach((card) => card.remove());
  const fresh = [];
  lines.forEach((line, place) => {
    const before = cards[place];
    if (before?.key === keyOf(line, more)) return;
    const card = new TextCard(line, more, before);
    cards[place] = card;
    if (before) before.element.replaceWith(card.element);
    else $("cards").append(card.element);
    before?.remove();
    fresh.push(card);
  });
  refresh();
  $("csv").hidden = cards.length < 2;
  for (const card of fresh) {
    if (known.has(card.key)) card.done(known.get(card.key));
    else queue.add(card);
  }
}

let timer = 0;
form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(classify, TYPED_MS);
});
field.addEventListener("keydown", ({ key }) => {
  if (key === "Enter") setTimeout(classify); // when the line is in the field
});
form.addEventListener("submit", (event) => event.preventDefault());
document.querySelector(".examples").addEventListener("submit", (event) => {
  event.preventDefault();
  type(field, event.submitter.value);
  classify();
});
$("csv").addEventListener("click", () => {
  const rows = cards.map((card) => [card.name, ...ranked(card)]);
  saveCsv(["text", ...RANKED], rows, `${config.name || "texts"}.csv`);
});
listen(() => {
  field.value = "";
  keep();
});
restore();
begin();
if (field.value) classify();
