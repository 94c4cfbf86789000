// The view for questions about a text: the answer is marked in it, and the text stays.

import { reveal } from "./cards.js";
import { AskCard, Asking } from "./asking.js";

class QuestionCard extends AskCard {
  verb = "Reading";

  done(answered) {
    super.done(answered);
    if (!this.panel.isShown) return;
    const text = this.find(".paragraph");
    const mark = text.querySelector("mark.best");
    if (mark) text.scrollTop = mark.offsetTop - text.clientHeight / 3;
    reveal(mark ?? this.element);
  }
}

export function start(panel) {
  const asking = new Asking(panel);
  const { form } = asking;
  const { question } = form.elements;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    asking.ask(new QuestionCard(asking, question.value.trim(), new FormData(form)));
  });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  asking.listen();
  asking.restore();
}
