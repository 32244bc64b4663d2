// The palette: Ctrl K (or Cmd K) finds and opens whatever the person may open, by keyboard alone.
// The server answers with plain groups of links; here they become the options of a combobox.

const WAIT_MS = 120; // after the last key, so that one word is one question
const SECRET = /^(hr_[0-9a-z]{8})_.*$/; // of an API key only the public prefix leaves this window

const dialog = document.getElementById("palette");
const link = document.querySelector("[data-palette]");

function setUp() {
  const input = dialog.querySelector("input");
  const results = document.getElementById("palette-found");
  const said = dialog.querySelector(".said");
  let options = [];
  let at = -1;
  let timer = 0;
  let asked = null; // the question under way
  let opensFirst = false; // Enter came before its answer

  function point(next) {
    options[at]?.setAttribute("aria-selected", "false");
    at = options.length ? (next + options.length) % options.length : -1;
    const option = options[at];
    if (!option) {
      input.removeAttribute("aria-activedescendant");
      return;
    }
    option.setAttribute("aria-selected", "true");
    input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  // Roles of a list box: groups and options, nothing else between them counts.
  function show(fragment) {
    results.replaceChildren(...fragment.querySelectorAll("section"));
    for (const section of results.children) section.setAttribute("role", "group");
    for (const node of results.querySelectorAll("h2, ul, li")) node.setAttribute("role", "presentation");
    options = [...results.querySelectorAll("a")];
    for (const [number, option] of options.entries()) {
      option.id = `palette-${number}`;
      option.tabIndex = -1;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
    }
    results.hidden = !options.length;
    input.setAttribute("aria-expanded", String(options.length > 0));
    at = -1;
    point(0);
    said.textContent = options.length ? `${options.length} found` : "Nothing that you may open matches";
  }

  function fail(words) {
    results.replaceChildren();
    results.hidden = true;
    options = [];
    point(0);
    input.setAttribute("aria-expanded", "false");
    said.textContent = words;
  }

  async function ask() {
    asked?.abort();
    const question = new AbortController();
    asked = question;
    const text = input.value.trim().replace(SECRET, "$1");
    try {
      const answer = await fetch(`${dialog.dataset.url}?q=${encodeURIComponent(text)}`, {
        headers: { "HX-Request": "true" },
        signal: question.signal,
      });
      if (answer.redirected) {
        location.reload(); // signed out meanwhile
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (question !== asked) return;
      const found = page.querySelector(".found");
      if (answer.ok && found) show(found);
      else fail(page.body.textContent.trim().replace(/\s+/g, " ") || "No answer: try again");
    } catch (error) {
      if (error.name === "AbortError") return;
      fail("The console does not answer: try again");
    }
    if (question !== asked) return;
    asked = null;
    if (opensFirst && options[at]) options[at].click();
    opensFirst = false;
  }

  function askSoon() {
    clearTimeout(timer);
    opensFirst = false;
    asked = new AbortController(); // what is shown is of an earlier word
    timer = setTimeout(ask, WAIT_MS);
  }

  function open() {
    if (dialog.open) return;
    dialog.showModal();
    input.select();
    ask();
  }

  function onInputKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      point(at + step);
      event.preventDefault();
    } else if (event.key === "Escape") {
      event.preventDefault(); // a search field would only be emptied
      dialog.close();
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      if (asked) opensFirst = true;
      else options[at]?.click();
    }
  }

  input.addEventListener("input", askSoon);
  input.addEventListener("keydown", onInputKey);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    asked?.abort();
    asked = null;
    clearTimeout(timer);
  });
  link?.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });
  document.addEventListener("keydown", (event) => {
    const isIt = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey);
    if (!isIt || event.altKey || event.shiftKey) return;
    event.preventDefault();
    if (dialog.open) dialog.close();
    else open();
  });
}

if (dialog?.showModal) setUp();
