// Text fields that grow with their text, in browsers without `field-sizing`.

/** @param {HTMLTextAreaElement} field */
export function growWithText(field) {
  if (CSS.supports("field-sizing", "content")) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}
