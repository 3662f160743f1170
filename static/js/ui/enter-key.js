// Keys of a text field, as distinct from those that an input method uses itself: who writes Japanese,
// Chinese or Korean confirms a conversion with Enter, chooses one with the arrows and leaves it with
// Escape.

/** The key code of a key that an input method handles. */
const INPUT_METHOD = 229;

/**
 * Does an input method handle this key? Safari ends the composition before the keydown of its Enter,
 * so that `isComposing` is false there; the key code still tells.
 *
 * @param {KeyboardEvent} event
 */
export const isComposing = (event) => event.isComposing || event.keyCode === INPUT_METHOD;

/** Is this an Enter that a person means to send or to save by? @param {KeyboardEvent} event */
export const isEnter = (event) => event.key === "Enter" && !isComposing(event);

/** The same where Shift Enter breaks the line. @param {KeyboardEvent} event */
export const isSendKey = (event) => isEnter(event) && !event.shiftKey;
