"""Words for in-context tasks and for sequences, in English and Spanish; any other pairs may be passed (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Pairs = Sequence[tuple[str, str]]


def _pairs(text: str) -> list[tuple[str, str]]:
    return [tuple(pair.replace("_", " ").split(":")) for pair in text.split()]  # type: ignore[misc]


TASKS: Mapping[str, Pairs] = {
    "antonym": _pairs(
        "hot:cold big:small up:down fast:slow good:bad old:new hard:soft high:low rich:poor happy:sad open:closed "
        "early:late full:empty strong:weak dark:light long:short wet:dry true:false left:right inside:outside "
        "love:hate buy:sell start:stop win:lose push:pull"
    ),
    "capital": _pairs(
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo China:Beijing Russia:Moscow Egypt:Cairo "
        "Greece:Athens Poland:Warsaw Portugal:Lisbon Austria:Vienna Ireland:Dublin Cuba:Havana Peru:Lima "
        "Chile:Santiago Canada:Ottawa Norway:Oslo Sweden:Stockholm "
        "Turkey:Ankara India:Delhi Kenya:Nairobi Iraq:Baghdad Iran:Tehran"
    ),
    "plural": _pairs(
        "cat:cats dog:dogs house:houses tree:trees car:cars book:books table:tables chair:chairs bird:birds "
        "child:children man:men woman:women mouse:mice city:cities "
        "box:boxes leaf:leaves day:days river:rivers king:kings "
        "story:stories bus:buses party:parties wolf:wolves foot:feet"
    ),
    "past": _pairs(
        "go:went see:saw eat:ate run:ran take:took give:gave make:made come:came know:knew think:thought find:found "
        "say:said write:wrote drive:drove sing:sang walk:walked play:played call:called work:worked look:looked "
        "live:lived move:moved stop:stopped turn:turned"
    ),
    "spanish": _pairs(
        "house:casa dog:perro cat:gato water:agua book:libro night:noche day:día man:hombre woman:mujer friend:amigo "
        "city:ciudad world:mundo time:tiempo life:vida hand:mano school:escuela door:puerta table:mesa street:calle "
        "country:país work:trabajo white:blanco black:negro red:rojo"
    ),
}
SEQUENCES: Mapping[str, Sequence[str]] = {
    name: tuple(words.split())
    for name, words in {
        "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "months": "January February March April May June July August September October November December",
        "numbers": "one two three four five six seven eight nine ten eleven twelve",
        "digits": "1 2 3 4 5 6 7 8 9",
        "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
        "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
        "números": "uno dos tres cuatro cinco seis siete ocho nueve diez once doce",
        "meses": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    }.items()
}
