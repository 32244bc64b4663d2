// A slider beside each number box that asks for one; the box stays what is sent.

const STEPS = 1000;
const WIDE = 1000; // from this ratio of highest to lowest on, the slider is logarithmic

function scaleOf(box) {
  const high = Number(box.dataset.slider || box.max);
  const low = Number(box.min);
  if (low > 0 && high / low >= WIDE) {
    const span = Math.log(high / low);
    return { at: (value) => (Math.log(value / low) / span) * STEPS, value: (at) => low * Math.exp((at / STEPS) * span) };
  }
  return { at: (value) => ((value - low) / (high - low)) * STEPS, value: (at) => low + (at / STEPS) * (high - low) };
}

// Three digits are as fine as a slider gets; the box takes any.
function rounded(value, step) {
  const digits = Number(value.toPrecision(3));
  return String(step >= 1 ? Math.round(digits) : digits);
}

function addSlider(box) {
  const scale = scaleOf(box);
  const slider = document.createElement("input");
  slider.type = "range";
  slider.min = 0;
  slider.max = STEPS;
  slider.setAttribute("aria-label", box.labels[0]?.textContent.trim() ?? box.name);
  const follow = () => {
    slider.value = Math.min(STEPS, Math.max(0, scale.at(Number(box.value) || Number(box.min) || 0)));
    slider.setAttribute("aria-valuetext", box.value);
  };
  slider.addEventListener("input", () => {
    box.value = rounded(scale.value(Number(slider.value)), Number(box.step) || 1);
    slider.setAttribute("aria-valuetext", box.value);
  });
  box.addEventListener("input", follow);
  follow();
  box.after(slider);
}

for (const box of document.querySelectorAll("input[data-slider]")) addSlider(box);
