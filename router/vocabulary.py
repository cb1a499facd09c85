"""Groups of words whose counts in a text hint at its difficulty. Kept as data, so that they are easy to review."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GROUPS = {
    "negations": _words("not no never except without cannot none neither nor incorrect false least isn doesn don"),
    "choices": _words("which following best most likely correct true statement statements above both"),
    "conditions": _words("if when than then each suppose given assume let whether while until unless"),
    "quantities": _words(
        """how many much total half twice percent average per rate times more less left remaining altogether sum
        difference multiply multiplied multiplication product divide divided minus plus squared ratio fraction
        equally"""
    ),
    "multiplications": _words("times multiply multiplied multiplication product square squared cube cubed power"),
    "mathematics": _words(
        """algebra angle circumference coefficient derivative determinant diameter eigenvalue equation equations
        expectation exponent factorial geometry gradient hypotenuse integer integers integral logarithm
        matrices matrix mean median modulo permutation polynomial prime primes probability quadratic random set subset
        theorem group ring finite triangle trigonometry variance vector vectors compute solve"""
    ),
    "reasoning": _words(
        """analyse analyze argue argument assess because compare contrast critique deduce demonstrate derive diagnose
        evaluate explain implies infer justify outline plan prove rank reason recommend strategy therefore thus why
        conclude principle theory"""
    ),
    "constraints": _words(
        """always must only exactly should required require answer answers begin end every format case reply put
        include avoid schema name named act role persona character"""
    ),
    "pronouns": _words("i you he she they we my your his her their it its him them me"),
    "programming": _words(
        """bash css debug docker dockerfile golang graphql haskell html javascript kotlin kubernetes linux mutex
        mysql numpy pandas php postgres postgresql pytest python react regex ruby rust scala sql sqlite traceback
        typescript unittest kubectl segfault terraform async await"""
    ),
    "code": _words(
        """algorithm api array boolean bug class code codebase compile compiler concurrency cron database deadlock
        decorator endpoint exception function functions git hashmap heap implement implementation import iterator
        lambda leak lint list loop method middleware module null object overflow parser pointer program query queue
        recursion recursive refactor return script server stack string struct syntax test tests thread threads tree
        unit variable write"""
    ),
    "declarations": _words("def fn function const select include public import"),
    "english": _words(
        """the of to is are and or what how for with by that this be it at from does can which you has have had
        not who if when will would please my your where there why"""
    ),
    "foreign": _words(
        """de en met wat kan waarom warum pourquoi perché porque dlaczego hvorfor varför der die das und ist nicht ein
        eine mit den dem von wie was zu auf le la les des est et une un dans pour que qui pas du el los las una por con
        para como y del es il che di per non sono gli het een van niet dat o os um uma não com ve bir bu ne için och
        att det som är på og ikke jak nie jest się na co w z czy и в не на что как"""
    ),
}
"""A word may be in more than one group."""
