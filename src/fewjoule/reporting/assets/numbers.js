// Numbers as text: the same rules as energy/show.py and reporting/wording.py.
const page = JSON.parse(document.getElementById("data").textContent);
const PREFIXES = { "-12": "p", "-9": "n", "-6": "µ", "-3": "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T" };

function digits(value) {
  const rounded = Number(value.toPrecision(3));
  const size = Math.abs(rounded);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e6) return rounded.toExponential(2).replace("+", "");
  return size >= 1000 ? rounded.toLocaleString("en-US") : rounded.toPrecision(3);
}
function thousands(value) {
  return Math.min(Math.max(3 * Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-12), -12), 12);
}
function si(value, unit) {
  if (value === 0) return `0 ${unit}`;
  const rounded = Number(value.toExponential(2));
  const power = thousands(rounded);
  return `${digits(rounded / 10 ** power)} ${PREFIXES[power]}${unit}`;
}
function timesText(ratio) {
  const rounded = Number(ratio.toPrecision(2));
  return ratio < 10 ? String(rounded) : rounded.toLocaleString("en-US");
}
function secondsText(value) {
  if (value < 60) return si(value, "s");
  return value < 3600 ? `${digits(value / 60)} min` : `${digits(value / 3600)} h`;
}
