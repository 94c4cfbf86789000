// What every view of the page shares: asking the server, words and small parts.

const KEEP_FILE_MS = 30000;

export const $ = (id) => document.getElementById(id);
export const say = (text) => { $("say").textContent = text; };
export const alarm = (text) => { $("alarm").textContent = text; };

/** Error in words: with `waits`, the card retries when the service is ready, with `final` never. */
export class Problem extends Error {
  constructor(title, advice, { code = "", retryAfter = 0, waits = "", final = false } = {}) {
    super(title);
    Object.assign(this, { title, advice, code, retryAfter, waits, final });
  }
}

export const tooLarge = () => new Problem(
  "The request is too large.", `The limit is ${$("page").dataset.maxMb} MB. Send less at a time.`,
);

// ---- Asking the server -----------------------------------------------------------------------

/** Posts a body; returns {answer, page, times, requestId}. Throws Problem, AbortError if cancelled. */
export async function post(url, content, headers, signal) {
  const start = performance.now();
  const options = { method: "POST", body: content, headers: { Accept: "application/json", ...headers } };
  const response = await request(url, { ...options, signal });
  const { page, ...answer } = await body(response);
  if (!response.ok) throw problemOf(response, answer, page);
  const times = timesOf(response.headers.get("Server-Timing") ?? "", performance.now() - start);
  return { answer, page, times, requestId: response.headers.get("X-Request-ID") };
}

/** Calls fetch; throws Problem when the connection is lost. */
export async function request(url, options) {
  const address = new URL(url, document.baseURI);
  address.username = address.password = ""; // refused by fetch; the browser sends them all the same
  try {
    return await fetch(address, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw navigator.onLine
      ? new Problem("This page's server is not responding.", "", { waits: "offline" })
      : new Problem("You are offline.", "", { waits: "offline" });
  }
}

export async function body(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response.status === 413) throw tooLarge();
    throw new Problem("The server returned an invalid response.", "Try again in a moment.");
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

// ---- Words and small parts --------------------------------------------------------------------

/** Returns text nodes in which a line does not break within "Rice 37 %". */
export const unbroken = (text) => text.split(/(\S+ [<>]?\d+ %,?)/).map((part, odd) =>
  (odd % 2 ? element("span", part, "together") : part));

export function fillTimes(scale, legend, times) {
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

export function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

export const pause = (ms, signal) => new Promise((done, fail) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); fail(signal.reason); });
});

// ---- Problems and code -----------------------------------------------------------------------

/** Shows a problem that belongs to no card, in a panel or in the one that is shown. */
export function complain(problem, panel = document) {
  panel.querySelector(".problem")?.remove();
  const box = element("div", "", "problem");
  box.append(element("strong", problem.title ?? "That did not work."), ` ${problem.advice ?? ""}`);
  panel.querySelector("header").after(box);
  alarm(box.textContent);
}

export const tryTo = (action) => async (event) => {
  try {
    document.querySelector(".problem")?.remove();
    await action(event);
  } catch (problem) {
    complain(problem);
  }
};

export async function copy(button) {
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

// ---- CSV -------------------------------------------------------------------------------------

/** Formats a cell; escapes a first character that makes spreadsheets see a formula. */
const cell = (value) => {
  const text = String(value);
  return `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll("\"", "\"\"")}"`;
};

/** Lets the browser save a head and rows of cells. */
export function saveCsv(head, rows, name) {
  const text = [head.join(","), ...rows.map((row) => row.map(cell).join(",")), ""].join("\r\n");
  const file = new Blob(["\ufeff", text], { type: "text/csv" });
  const link = element("a", "");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEEP_FILE_MS);
}
