/* Keeps one array of logits in the page, for other components to use. It draws nothing.
 *
 * A component gets all of its data again when one field changes. 49,152 float32 are 200 kB, so they travel in this mount
 * of their own, once per run and step, and the small settings beside them can change as often as they like.
 *
 * DATA  {logits: Float32 column (vocab,), meta: {key: "…"}}
 * Readers find it with  globalThis.otatLogits.get(key)  and are told by the event "otat-logits" on window.
 */
const KEPT = 4; // arrays; a learner who steps back and forth gets the last few without waiting

export default function (component) {
  const { data } = opened(component);
  const store = (globalThis.otatLogits ??= new Map());
  const key = data?.meta?.key;
  if (!key) return;
  if (!store.has(key)) {
    const values = column(data.logits);
    store.set(key, values instanceof Float32Array ? values : Float32Array.from(values));
    for (const old of [...store.keys()].slice(0, Math.max(0, store.size - KEPT))) store.delete(old);
  }
  window.dispatchEvent(new CustomEvent("otat-logits", { detail: key }));
}
