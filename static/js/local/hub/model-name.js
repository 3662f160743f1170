// The name of a model of a hub.

const NAME = /^[\w-][\w.-]*\/[\w-][\w.-]*$/;

/** Is this OWNER/MODEL? @param {string} name */
export const isModelName = (name) => NAME.test(name);
