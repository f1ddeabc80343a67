/* The cache race: the same answer in two lanes, in the proportions of their real computing times.
 *
 * DATA (built by pages/views/race_data.py)
 * {
 *   n_prompt, tokens: [{text, hex, special}],          the answer, the same in both lanes
 *   with: {seconds: [...], computed: [...]},           per pass: seconds of computing; positions whose K and V were computed
 *   without: {seconds: [...], computed: [...]},
 *   dots: [...],                                       query–key pairs of each new token (equal in both lanes)
 *   lang, text: {…}                                    the strings under TEXT
 * }
 * Both lanes start at the same moment; the clock shows computing time only. Nothing is sent back to Python.
 */

/* TEXT  aria with without running {n} {all} over {time} · tokens {n} · computed dots seconds · event_of {i} {n}
 *   play pause back forward position speed speed_real speed_slower {n} speed_faster {n} · kind_measured · answer */

const LANES = ["with", "without"];

function sums(values) { let total = 0; return values.map((x) => (total += x)); }

function buildRace(root) {
  const lane = (name) => {
    const box = root.querySelector(".lane." + name), figs = ["time", "computed", "dots"].map(() => ({ b: h("b", {}), label: h("span", {}) }));
    box.querySelector(".figs").append(...figs.map((f) => h("div", { class: "fig" }, f.b, f.label)));
    const strip = box.querySelector(".chips");
    strip.onscroll = () => strip.classList.toggle("cut", strip.scrollLeft > 1);
    return { name, title: box.querySelector("h2"), done: box.querySelector(".done"), strip, figs, shown: -1 };
  };
  const s = { root, lanes: LANES.map(lane), canvas: root.querySelector("canvas"), colours: null };
  s.player = new Player({ onChange: (p, why) => { if (s.events) drawRace(s, why); } });
  s.say = announcer(root);
  bindKeys(root, s.player);
  watch(root, () => { s.colours = null; if (s.events) drawRace(s, "data"); });
  const moment = (event) => (event.offsetX / Math.max(1, s.canvas.clientWidth - s.edge)) * s.end;
  const position = (event) => s.events.filter((e) => e.at <= moment(event) + 1e-9).length;
  s.canvas.onpointerdown = (event) => { s.canvas.setPointerCapture(event.pointerId); s.dragging = true; s.player.go(position(event), { commit: false }); };
  s.canvas.onpointermove = (event) => { if (s.dragging) s.player.go(position(event), { commit: false }); };
  s.canvas.onpointerup = s.canvas.onpointercancel = () => { s.dragging = false; };
  return s;
}

/** What has happened after `position` events: how many passes each lane has finished. */
function finished(s, position) {
  const counts = [0, 0];
  for (const event of s.events.slice(0, position)) counts[event.lane] += 1;
  return counts;
}

function clock(s) {
  const { position, fraction } = s.player, before = position ? s.events[position - 1].at : 0;
  return position < s.events.length ? before + fraction * (s.events[position].at - before) : before;
}

function drawLane(s, lane, i, done) {
  const { data, text, f } = s, all = data.tokens.length;
  if (lane.shown !== done) {
    if (done < lane.shown) lane.strip.replaceChildren();
    for (let k = lane.strip.childElementCount; k < done; k++) lane.strip.append(chip(data.tokens[k], { phase: "decode" }));
    lane.strip.scrollLeft = lane.strip.scrollWidth;
    lane.shown = done;
  }
  const spent = done ? s.times[i][done - 1] : 0;
  lane.done.classList.toggle("over", done === all);
  lane.done.textContent = done === all ? t(text.over, { time: f.ms(spent * 1000) }) : t(text.running, { n: f.int(done), all: f.int(all) });
  const values = [f.ms(spent * 1000), f.int(done ? s.computed[i][done - 1] : 0), f.int(done ? s.dots[done - 1] : 0)];
  lane.figs.forEach((fig, k) => { fig.b.textContent = values[k]; });
}

function drawTimes(s, now) {
  const { ctx, w } = fitCanvas(s.canvas), c = (s.colours ||= palette(s.root)), unit = rem();
  if (!w) return;
  s.edge = 0.75 * unit;
  const sx = (seconds) => (seconds / s.end) * (w - s.edge), tall = 1.75 * unit, tops = [1.25 * unit, 4.375 * unit];
  ctx.font = `${0.75 * unit}px ${c.sans}`;
  LANES.forEach((name, i) => {
    const colour = name === "with" ? c.decode : c.prefill, fill = name === "with" ? hatch(ctx, colour) : colour;
    ctx.fillStyle = name === "with" ? c["decode-ink"] : c["prefill-ink"];
    ctx.fillText(s.text[name], 0, tops[i] - 0.375 * unit);
    s.times[i].forEach((stop, k) => {
      const a = sx(k ? s.times[i][k - 1] : 0), b = sx(stop);
      ctx.globalAlpha = stop <= now + 1e-9 ? 1 : 0.16;
      ctx.fillStyle = fill;
      ctx.fillRect(a, tops[i], Math.max(0.5, b - a - (b - a > 3 ? 1 : 0.25)), tall);
    });
    ctx.globalAlpha = 1;
  });
  const base = tops[1] + tall;
  ctx.fillStyle = c.muted;
  for (const tick of axisTicks(s.end, w - s.edge, 4.5 * unit)) {
    ctx.fillRect(sx(tick), base, 1, 0.3125 * unit);
    const label = s.f.ms(tick * 1000), wide = ctx.measureText(label).width;
    ctx.fillText(label, Math.max(0, Math.min(sx(tick) - wide / 2, w - wide)), base + 1.25 * unit);
  }
  ctx.fillStyle = c.ink;
  ctx.fillRect(Math.min(sx(now), w - s.edge), tops[0] - 0.25 * unit, 2, base - tops[0] + 0.5 * unit);
}

function drawRace(s, why) {
  const counts = finished(s, s.player.position);
  s.lanes.forEach((lane, i) => drawLane(s, lane, i, counts[i]));
  drawTimes(s, clock(s));
  const label = t(s.text.event_of, { i: s.player.position, n: s.events.length });
  s.canvas.setAttribute("aria-label", `${s.text.aria} ${label}`);
  if (why !== "play") s.say(`${s.text.with}: ${counts[0]}. ${s.text.without}: ${counts[1]}.`);
}

export default function (component) {
  const { data, parentElement } = opened(component), s = instance(parentElement, buildRace);
  const fresh = JSON.stringify([data.with.seconds, data.without.seconds]);
  s.data = data; s.text = data.text; s.f = formats(data.lang);
  s.root.setAttribute("aria-label", s.text.aria);
  s.lanes.forEach((lane) => {
    lane.title.textContent = s.text[lane.name];
    lane.strip.setAttribute("aria-label", `${s.text.answer}: ${s.text[lane.name]}`);
    lane.figs.forEach((fig, k) => fig.label.replaceChildren(s.text[["seconds", "computed", "dots"][k]], h("em", { class: "kind" }, s.text.kind_measured)));
  });
  const controls = s.root.querySelector(".controls");
  if (!s.bar) { s.bar = playerBar(s.player, s.text, { valueText: (p) => t(s.text.event_of, { i: p.position, n: p.count }) }); controls.append(s.bar); } else s.bar.setText(s.text);
  if (s.fresh === fresh) return drawRace(s, "data");
  s.fresh = fresh;
  s.times = LANES.map((name) => sums(data[name].seconds));
  s.computed = LANES.map((name) => sums(data[name].computed));
  s.dots = sums(data.dots);
  s.lanes.forEach((lane) => { lane.shown = -1; lane.strip.replaceChildren(); });
  s.events = s.times.flatMap((times, lane) => times.map((at) => ({ at, lane }))).sort((a, b) => a.at - b.at || a.lane - b.lane);
  s.end = Math.max(0.001, ...s.events.map((e) => e.at));
  s.player.update({ count: s.events.length, position: s.events.length, duration: (i) => s.events[i].at - (i ? s.events[i - 1].at : 0) });
}
