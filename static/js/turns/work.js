// Time that a token took, without what its run waited because of its pace.

/**
 * Milliseconds of the interval before a token in which its run did not wait.
 *
 * @param {ToPage.StepTimes} times
 */
export const workOf = ({ interval, paced = 0 }) => interval - paced;
