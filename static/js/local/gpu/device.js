// The visitor's GPU: which one it is, whether a plan fits on it, and the device.

/** Adapters that compute on the processor, for which a profile of its own is faster. */
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|basic render/i;

/** Return the browser's adapter. Throws an Error that says what the visitor can do without one. */
export async function requestAdapter() {
  if (!navigator.gpu)
    throw new Error(
      isSecureContext
        ? "this browser has no WebGPU; use a current Chrome, Edge, Firefox or Safari"
        : "WebGPU needs a secure connection: open this page over https or from localhost",
    );
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter)
    throw new Error("this browser gives no access to a GPU; see its settings for graphics acceleration");
  return adapter;
}

/**
 * Return the profile of an export that suits an adapter.
 *
 * @param {GPUAdapter} adapter
 * @param {string[]} profiles
 */
export function profileFor(adapter, profiles) {
  const { isFallbackAdapter, architecture, description, vendor } = adapter.info;
  const software = isFallbackAdapter || SOFTWARE.test(`${vendor} ${architecture} ${description}`);
  return software && profiles.includes("software") ? "software" : "portable";
}

/** Features that instruments use where the adapter has them. @type {GPUFeatureName[]} */
export const WANTED = ["timestamp-query"];

/**
 * Return a device with what a plan needs. Throws an Error that names what the adapter lacks.
 *
 * @param {GPUAdapter} adapter
 * @param {Exported.Needs} needs
 */
export async function requestDevice(adapter, { bytes, features, limits }) {
  for (const feature of features)
    if (!adapter.features.has(feature)) throw new Error(`this GPU lacks ${feature}`);
  /** @type {Record<string, number>} */
  const requiredLimits = {};
  const given = /** @type {Record<string, number>} */ (/** @type {unknown} */ (adapter.limits));
  for (const [name, wanted] of Object.entries(limits)) {
    if (!(given[name] >= wanted))
      throw new Error(
        `the model needs ${name} ${wanted} and this browser gives ${given[name]} ` +
          `(${megabytes(bytes)} in all); choose a smaller model or storage type`,
      );
    requiredLimits[name] = wanted;
  }
  const needed = /** @type {GPUFeatureName[]} */ (features); // the adapter has them all
  const requiredFeatures = [...needed, ...WANTED.filter((name) => adapter.features.has(name))];
  return adapter.requestDevice({ requiredFeatures, requiredLimits });
}

/** Return how an adapter is called, for people. @param {Pick<GPUAdapter, "info">} adapter */
export function adapterName({ info }) {
  const told = info.description || [info.vendor, info.architecture].filter(Boolean).join(" ");
  return told || (info.isFallbackAdapter ? "software adapter" : "GPU");
}

/** @param {number} bytes */
const megabytes = (bytes) => `${Math.ceil(bytes / 2 ** 20)} MiB`;
