// The view for questions about a text: the answer is marked in it, and the text stays.

import { begin } from "./common.js";
import { reveal } from "./cards.js";
import { ask, AskCard, form, listen, restore, type } from "./asking.js";

const { context, question } = form.elements;

class QuestionCard extends AskCard {
  verb = "Reading";

  done(answered) {
    super.done(answered);
    const text = this.find(".paragraph");
    const mark = text.querySelector("mark.best");
    if (mark) text.scrollTop = mark.offsetTop - text.clientHeight / 3;
    reveal(mark ?? this.element);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask(new QuestionCard(question.value.trim(), new FormData(form)));
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
document.querySelector(".examples").addEventListener("submit", (event) => {
  event.preventDefault();
  type(context, event.target.elements.context.value);
  type(question, event.target.elements.question.value);
  form.requestSubmit();
});
listen();
restore();
begin();
