/* Keeps numbers in the page for the tokens lab: the tokenizer's list of merges, and rows of the embedding table.
 *
 * A component gets all of its data again when one field changes. The merges (about 200 kB) travel once, in a mount of
 * their own, and so does each row; what the learner types can then change as often as it likes.
 *
 * DATA  {values: a numpy column, meta: {key: "…", …}}
 * Readers find {values, meta} with  globalThis.otatTokens.get(key)  and are told by the event "otat-tokens" on window.
 */
const KEPT = 64; // entries: one table, and the rows of the tokens looked at last

export default function (component) {
  const { data } = opened(component);
  const store = (globalThis.otatTokens ??= new Map());
  const key = data?.meta?.key;
  if (!key) return;
  if (!store.has(key)) {
    store.set(key, { values: column(data.values), meta: data.meta });
    const rows = [...store.keys()].filter((k) => !k.startsWith("table"));
    for (const old of rows.slice(0, Math.max(0, rows.length - KEPT))) store.delete(old);
  }
  window.dispatchEvent(new CustomEvent("otat-tokens", { detail: key }));
}
