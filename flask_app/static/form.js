// The view for everything else: the form of a request's declared types, the answer as a table.

import { Problem, tooLarge, tryTo } from "./common.js";
import { AskCard, Asking } from "./asking.js";

const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 0);

export function start(panel) {
  const asking = new Asking(panel);
  const { form } = asking;
  let asked = 0;

  form.addEventListener("submit", tryTo(async (event) => {
    event.preventDefault();
    const content = new FormData(form);
    for (const { files, dataset } of form.querySelectorAll("[type=file]")) {
      const most = Number(dataset.most ?? Infinity);
      if (files[0]?.size > most) {
        throw new Problem("This file is too large.", `The limit is ${megabytes(most)} MB.`);
      }
    }
    const bytes = [...content.values()].reduce((sum, value) => sum + (value.size ?? 0), 0);
    if (bytes > Number(panel.config.maxBytes)) throw tooLarge();
    asked += 1;
    asking.ask(new AskCard(asking, `Request ${asked}`, content));
  }));
  asking.listen();
  asking.restore();
}
