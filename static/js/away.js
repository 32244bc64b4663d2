// The page of a lost server: asks for its own address again and again, and comes back with it.

const line = document.getElementById("away");
const everyMs = 1000 * Number(line.dataset.every);

async function again() {
  try {
    const answer = await fetch(location.href, { method: "HEAD", cache: "no-store", credentials: "same-origin", redirect: "manual" });
    if (answer.type === "opaqueredirect" || (answer.status > 0 && answer.status < 500)) {
      location.reload();
      return;
    }
  } catch {
    // the console itself does not answer: the next try may
  }
  setTimeout(again, everyMs);
}

line.textContent = `Tried again by itself every ${line.dataset.every} s.`;
setTimeout(again, everyMs);
