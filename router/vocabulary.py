"""Words that the complexity score takes for evidence, in lower case. Data, so that they can be read and argued with."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRODUCT_WORDS = _words("times multiply multiplied product divide divided squared cubed percent percentage")

MATH_WORDS = _words(
    """
    algebra angle arithmetic average circumference coefficient coefficients combinatorics cosine derivative determinant
    diameter differentiate eigenvalue eigenvalues equation equations expectation exponent factorial fraction geometry
    gradient hypotenuse inequality integer integers integral integrate linear logarithm matrices matrix mean median
    modulo percent perimeter permutation permutations polynomial prime primes probability quadratic ratio regression
    remainder sine slope solve sqrt subset theorem triangle trigonometry variance vector vectors
    """
)

CODE_WORDS = _words(
    """
    algorithm api array async bash boolean bug class code compile compiler complexity concurrency css database debug
    deadlock def docker exception function git html implement implementation import javascript
    kubernetes loop method mutex null optimize parser pointer program python query recursion recursive refactor
    regex rust script sql stack struct syntax thread traceback typescript unit variable
    """
)

STEP_WORDS = _words(
    """
    analyse analyze argue assess compare contrast critique deduce demonstrate derive design diagnose evaluate explain
    infer investigate justify outline plan prove rank reason recommend strategy synthesize tradeoff tradeoffs why
    """
)

CONSTRAINT_WORDS = _words(
    """
    avoid but cannot constraint constraints ensure except exactly following format include including least maximum
    minimum must never only require required requirement requirements respectively should strictly unless without
    """
)
