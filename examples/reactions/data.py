"""Reactions with exact atom maps, made by taking real molecules apart (or changing them) at well-known places.

A template is read from left to right on a molecule of a file. Where it is a retrosynthetic step the molecule is the
product and the pieces are its reactants; ester hydrolysis alone runs forwards. RDKit remembers which atom of a piece
was which atom of the molecule, so every map is exact. Whether a chemist would get this product in this yield is not
asked: other groups that could react may be present.
"""

from __future__ import annotations

import csv
import gzip
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError

SPLIT = {"train": 0.6, "dev": 0.2, "test": 0.2}
LONGEST = 200  # tokens
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\(\d{3}\)|%\d\d|.")
ATOM = re.compile(r"\[\d*([A-Z][a-z]?|[a-z])[^\]]*\]|(Br|Cl|[BCNOPSFIbcnops])")
HALOGENS = {"F", "CL", "BR", "I"}
FORWARD = ("ester hydrolysis",)
TEMPLATES = {
    "amide coupling": "[#6:4][C:1](=[O:2])!@[NX3;!$(N(C=O)C=O):3]>>[#6:4][C:1](=[O:2])O.[N:3]",
    "esterification": "[#6:4][C:1](=[O:2])!@[OX2:3]!@[CX4:5]>>[#6:4][C:1](=[O:2])O.[O:3][C:5]",
    "sulfonamide formation": "[#6:4][S:1](=[O:2])(=[O:5])!@[NX3:3]>>[#6:4][S:1](=[O:2])(=[O:5])Cl.[N:3]",
    "Suzuki coupling": "[c:1]!@[c:2]>>[c:1]Br.[c:2]B(O)O",
    "reductive amination": "[CH2;$(C[#6]):1]!@[NX3;!$(NC=[O,N,S]);!$(NS=O);!$(N[a]);!$(N[!#6]):2]>>[C:1]=O.[N:2]",
    "Williamson ether": "[c:3][OX2:1]!@[CH2:2]>>[c:3][O:1].[C:2]Br",
    "SNAr": "[c;r6;$(c:n):1]!@[NX3;!$(NC=[O,N,S]);!$(NS=O);!$(N[!#6]):2]>>[c:1]Cl.[N:2]",
    "urea formation": "[#6:5][NH:1]!@[C:2](=[O:3])!@[NX3:4]>>[#6:5][N:1]=[C:2]=[O:3].[N:4]",
    "nitro reduction": "[c:1][NH2:2]>>[c:1][N+:2](=O)[O-]",
    "Boc deprotection": "[NX3;H1;$(N([CX4])[CX4]):1]>>[N:1]C(=O)OC(C)(C)C",
    "Boc protection": "[NX3:1]!@[C:2](=[O:3])[O:4][C:5]([CH3:6])([CH3:7])[CH3:8]"
    ">>[N:1].[C:2](=[O:3])([O:4][C:5]([C:6])([C:7])[C:8])OC(=O)OC(C)(C)C",
    "ester hydrolysis": "[#6:4][C:1](=[O:2])!@O!@[CH3,$([CH2][CH3])]>>[#6:4][C:1](=[O:2])[OH]",
}


@dataclass(frozen=True)
class Map:
    """A product atom, its reactant atom, and all reactant atoms that symmetry makes the same; places of tokens."""

    product: int
    reactant: int
    same: tuple[int, ...]


@dataclass(frozen=True)
class Reaction:
    """One reaction as its tokens, what is exactly known of them, and what probes ask for."""

    name: str
    tokens: tuple[str, ...]
    maps: tuple[Map, ...]
    product: str
    rings: int

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    @property
    def halogen(self) -> bool:
        """In the product: reactants have one in many classes."""
        return any(element(token) in HALOGENS for token in TOKEN.findall(self.product))

    @property
    def brackets(self) -> list[tuple[int, int]]:
        """Every closing bracket and its opening one."""
        pairs, stack = [], []
        for place, token in enumerate(self.tokens):
            if token == "(":
                stack.append(place)
            elif token == ")":
                pairs.append((place, stack.pop()))
        return pairs

    @property
    def closures(self) -> list[tuple[int, int]]:
        """Every digit that closes a ring and the one that opened it."""
        pairs, opened = [], {}
        for place, token in enumerate(self.tokens):
            if token.isdigit() or token.startswith("%"):
                if token in opened:
                    pairs.append((place, opened.pop(token)))
                else:
                    opened[token] = place
        return pairs

    @property
    def reactant_atoms(self) -> list[int]:
        return [i for i in range(self.tokens.index(">>")) if element(self.tokens[i])]


def element(token: str) -> str | None:
    """The element of an atom's token in capitals; None for brackets, bonds, digits and dots.

    Example:
        >>> element("[nH]"), element("c"), element("Cl"), element("(")
        ('N', 'C', 'CL', None)
    """
    match = ATOM.fullmatch(token)
    return (match[1] or match[2]).upper() if match else None


def molecules(path: str | Path, seed: int = 0) -> list[str]:
    """The SMILES of a file in an order of their own: the first column of csv or text, gzipped or not."""
    path = Path(path)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        smiles = [row[0].split()[0] for row in csv.reader(file) if row and row[0].strip()]
    smiles = sorted(set(smiles) - {"SMILES", "smiles"})
    random.Random(seed).shuffle(smiles)
    return smiles


def make(smiles: Sequence[str], each: int, seed: int = 0) -> dict[str, list[Reaction]]:
    """As many reactions of every template, by split; each molecule is used once and no product appears twice."""
    rng, made, products = random.Random(seed), defaultdict(list), set()
    steps = {name: _chemistry().ReactionFromSmarts(smarts) for name, smarts in TEMPLATES.items()}
    for text in smiles:
        open_steps = [name for name in steps if len(made[name]) < each]
        if not open_steps:
            break
        fit = [found for name in open_steps if (found := _apply(name, steps[name], text, rng))]
        if fit:
            few = min(fit, key=lambda found: len(made[found.name]))
            if few.product not in products and len(few.tokens) <= LONGEST:
                products.add(few.product)
                made[few.name].append(few)
    short = {name: len(made[name]) for name in steps if len(made[name]) < each}
    if short:
        raise HeadwiseError(f"too few molecules: {short}", f"{each} of every template", "give a larger file")
    return {split: found for split, found in _split(made, each, rng)}


def _split(made: dict[str, list[Reaction]], each: int, rng: random.Random) -> Iterator[tuple[str, list[Reaction]]]:
    """The same share of every template on each side."""
    start = 0.0
    for split, share in SPLIT.items():
        first, last = round(start * each), round((start + share) * each)
        chosen = [reaction for reactions in made.values() for reaction in reactions[first:last]]
        rng.shuffle(chosen)
        start += share
        yield split, chosen


def _apply(name: str, step: Any, smiles: str, rng: random.Random) -> Reaction | None:
    """One of the places where a template fits a molecule, as a reaction; None where there is none."""
    chem = _rdkit()
    molecule = chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.HasSubstructMatch(step.GetReactantTemplate(0)):
        return None
    pieces = list(rng.choice(step.RunReactants((molecule,))))
    if any(chem.SanitizeMol(piece, catchErrors=True) for piece in pieces):
        return None
    rng.shuffle(pieces)
    for atom in molecule.GetAtoms():
        atom.SetIntProp("origin", atom.GetIdx())
    for atom in (atom for piece in pieces for atom in piece.GetAtoms()):
        if atom.HasProp("react_atom_idx"):
            atom.SetIntProp("origin", atom.GetIntProp("react_atom_idx"))
    left, right = ([molecule], pieces) if name in FORWARD else (pieces, [molecule])
    return _written(name, left, right[0])


def _written(name: str, reactants: list[Any], product: Any) -> Reaction:
    """The reaction's tokens without maps, and its maps as places of tokens."""
    sides = [_tokens([*reactants]), _tokens([product])]
    tokens = (*sides[0][0], ">>", *sides[1][0])
    after = len(sides[0][0]) + 1
    place_of = {origin: (place, kind) for place, origin, kind in sides[0][1] if origin is not None}
    same = defaultdict(list)
    for place, _, kind in sides[0][1]:
        same[kind].append(place)
    maps = []
    for place, origin, _ in sides[1][1]:
        if origin in place_of:
            reactant, kind = place_of[origin]
            maps.append(Map(place + after, reactant, tuple(same[kind])))
    rings = product.GetRingInfo().NumRings()
    return Reaction(name, tokens, tuple(maps), "".join(sides[1][0]), rings)


def _tokens(pieces: list[Any]) -> tuple[list[str], list[tuple[int, int | None, tuple]]]:
    """The tokens of molecules, and of every atom its token's place, its origin and its symmetry class."""
    chem, tokens, atoms = _rdkit(), [], []
    for piece in pieces:
        clean = chem.Mol(piece)
        for atom in clean.GetAtoms():
            atom.SetAtomMapNum(0)
        text = chem.MolToSmiles(clean)
        order = list(clean.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])
        ranks = list(chem.CanonicalRankAtoms(clean, breakTies=False))
        tokens += ["."] if tokens else []
        texts = TOKEN.findall(text)
        places = [len(tokens) + i for i, token in enumerate(texts) if element(token)]
        for place, index in zip(places, order, strict=True):
            atom = piece.GetAtomWithIdx(index)
            origin = atom.GetIntProp("origin") if atom.HasProp("origin") else None
            atoms.append((place, origin, (text, ranks[index])))
        tokens += texts
    return tokens, atoms


def offset(reactions: Sequence[Reaction], pairs: Any) -> int:
    """The commonest distance from a token to the one it belongs to."""
    distances = Counter(target - place for reaction in reactions for place, target in pairs(reaction))
    return distances.most_common(1)[0][0]


def _rdkit() -> Any:
    try:
        from rdkit import Chem
    except ImportError:
        raise HeadwiseError("rdkit is not installed", hint="pip install rdkit; --no-run needs none") from None
    return Chem


def _chemistry() -> Any:
    _rdkit()
    from rdkit import RDLogger
    from rdkit.Chem import AllChem

    RDLogger.DisableLog("rdApp.*")  # pieces that cannot be are left out, each with a line of its own
    return AllChem
