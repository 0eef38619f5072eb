"""The words of the embedded corpus, English and Spanish side by side.

``*`` marks a word held out for the test split. A noun is ``english/spanish.gender``; a verb is
``base:past:participle/infinitive:present:past:participle`` with regular forms omitted; ``_`` is a space. Synonyms are
separate words, grouped in ``SYNONYMS``.
"""

# kind topic: nouns
NOUNS = """
person general: nurse/enfermera.f pilot/piloto.m teacher/maestra.f girl/niña.f woman/mujer.f man/hombre.m
person general: neighbor/vecino.m singer/cantante.f writer/escritora.f painter/pintor.m driver/conductor.m
person general: soldier/soldado.m actor/actor.m dancer/bailarina.f tourist/turista.m lawyer/abogada.f
person general: attorney/letrada.f *guard/guardia.m *sailor/marinero.m *librarian/bibliotecaria.f *tailor/sastre.m
person sport: player/jugador.m coach/entrenador.m trainer/preparador.m referee/árbitro.m goalkeeper/portero.m
person sport: runner/corredora.f swimmer/nadadora.f captain/capitán.m athlete/atleta.m *cyclist/ciclista.f
person sport: *boxer/boxeador.m
person food: cook/cocinero.m chef/chef.m waiter/camarero.m baker/panadero.m farmer/granjera.f butcher/carnicero.m
person food: customer/clienta.f *fisherman/pescador.m *waitress/camarera.f
person science: scientist/científica.f doctor/médico.m physician/doctor.m engineer/ingeniera.f professor/profesor.m
person science: student/estudiante.m astronomer/astrónoma.f inventor/inventor.m *chemist/químico.m *surgeon/cirujana.f
person politics: minister/ministra.f mayor/alcalde.m senator/senador.m judge/jueza.f voter/votante.m
person politics: ambassador/embajadora.f president/presidente.m *governor/gobernador.m *diplomat/diplomática.f
animal general: animal/animal.m dog/perro.m cat/gato.m horse/caballo.m rabbit/conejo.m cow/vaca.f lion/león.m
animal general: tiger/tigre.m monkey/mono.m elephant/elefante.m mouse/ratón.m goat/cabra.f *wolf/lobo.m *fox/zorro.m
animal general: *bear/oso.m
bird general: bird/pájaro.m duck/pato.m sparrow/gorrión.m parrot/loro.m owl/búho.m *swan/cisne.m
flower general: flower/flor.f rose/rosa.f tulip/tulipán.m daisy/margarita.f lily/lirio.m *orchid/orquídea.f
fruit food: fruit/fruta.f apple/manzana.f pear/pera.f orange/naranja.f lemon/limón.m banana/plátano.m
fruit food: *peach/melocotón.m *cherry/cereza.f
vegetable food: vegetable/verdura.f carrot/zanahoria.f onion/cebolla.f tomato/tomate.m potato/patata.f
vegetable food: *pepper/pimiento.m
dish food: cake/pastel.m soup/sopa.f salad/ensalada.f sandwich/bocadillo.m pizza/pizza.f pie/tarta.f cheese/queso.m
dish food: steak/filete.m dessert/postre.m *stew/guiso.m *sauce/salsa.f
vehicle general: vehicle/vehículo.m car/coche.m automobile/automóvil.m truck/camión.m bus/autobús.m van/furgoneta.f
vehicle general: *tractor/tractor.m
instrument general: instrument/instrumento.m violin/violín.m piano/piano.m guitar/guitarra.f drum/tambor.m
instrument general: *flute/flauta.f
text general: book/libro.m letter/carta.f novel/novela.f poem/poema.m newspaper/periódico.m magazine/revista.f
text general: article/artículo.m story/cuento.m tale/relato.m *diary/diario.m
work general: film/película.f movie/filme.m concert/concierto.m song/canción.f painting/cuadro.m picture/pintura.f
work general: photograph/fotografía.f *sculpture/escultura.f *documentary/documental.m
object general: chair/silla.f lamp/lámpara.f clock/reloj.m mirror/espejo.m gift/regalo.m present/obsequio.m key/llave.f
object general: *candle/vela.f *ladder/escalera.f *blanket/manta.f
opening general: door/puerta.f window/ventana.f drawer/cajón.m *gate/verja.f
holder general: box/caja.f bag/bolsa.f bottle/botella.f cup/taza.f *basket/cesta.f
garment general: hat/sombrero.m coat/abrigo.m shirt/camisa.f scarf/bufanda.f *jacket/chaqueta.f
surface general: table/mesa.f shelf/estante.m desk/escritorio.m
gear sport: ball/pelota.f trophy/trofeo.m medal/medalla.f racket/raqueta.f helmet/casco.m *glove/guante.m
contest sport: match/partido.m race/carrera.f final/final.f tournament/torneo.m championship/campeonato.m
contest sport: *marathon/maratón.m
device science: telescope/telescopio.m microscope/microscopio.m robot/robot.m computer/ordenador.m engine/motor.m
device science: sensor/sensor.m machine/máquina.f rocket/cohete.m *satellite/satélite.m *battery/batería.f
study science: theory/teoría.f experiment/experimento.m vaccine/vacuna.f planet/planeta.m *hypothesis/hipótesis.f
measure politics: law/ley.f treaty/tratado.m budget/presupuesto.m tax/impuesto.m reform/reforma.f *decree/decreto.m
speech politics: speech/discurso.m campaign/campaña.f agreement/acuerdo.m *petition/petición.f
place general: park/parque.m garden/jardín.m school/escuela.f forest/bosque.m library/biblioteca.f hotel/hotel.m
place general: square/plaza.f *village/pueblo.m
place sport: stadium/estadio.m gym/gimnasio.m
place food: kitchen/cocina.f restaurant/restaurante.m bakery/panadería.f market/mercado.m *tavern/taberna.f
place science: laboratory/laboratorio.m hospital/hospital.m university/universidad.f observatory/observatorio.m
place politics: parliament/parlamento.m embassy/embajada.f courthouse/juzgado.m *ministry/ministerio.m
landmark general: river/río.m bridge/puente.m station/estación.f church/iglesia.f harbor/puerto.m *castle/castillo.m
landmark general: *island/isla.f
"""

# kind: names, the same in both languages but for a few cities
NAMES = """
PER: Laura.f Daniel.m Sofia.f David.m Emma.f Oscar.m Julia.f Martin.m Sara.f Victor.m Nora.f Hugo.m Maria.f Adam.m
PER: Helena.f Simon.m Clara.f Pablo.m Elena.f Felix.m Diana.f Leo.m Alice.f Bruno.m *Olivia.f *Gabriel.m *Paula_Vega.f
PER: Carmen_Diaz.f Robert_Klein.m Irene_Costa.f Thomas_Reed.m *Samuel.m *Lucia.f *Peter_Novak.m
LOC: Madrid.m Boston.m Berlin.m Chicago.m Lima.f Toronto.m Vienna/Viena.f London/Londres.m New_York/Nueva_York.f
LOC: Buenos_Aires.m Peru/Perú.m Mexico/México.m Canada/Canadá.m *Dublin/Dublín.m *Paris/París.m *Costa_Rica.f
LOC: *Norway/Noruega.f
ORG: Vertex.m Orion.m Globex.m Northwind.m Atlas_Bank.m Delta_Motors.m Summit_Foods.m Pioneer_Labs.m *Horizon_Media.m
ORG: *Quantum.m
"""

# subject > object [> recipient] topic: verbs; "-" is nothing, "that" a clause
VERBS = """
person,animal,bird > - general: sleep:slept/dormir:duerme:durmió arrive/llegar wait/esperar rest/descansar
person,animal,bird > - general: disappear/desaparecer return/volver:vuelve:volvió:vuelto run:ran:run/correr
person > - general: smile/sonreír:sonríe:sonrió:sonreído laugh/reír:ríe:rio:reído
person > - general: sing:sang:sung/cantar dance/bailar cry/llorar
person > - general: work/trabajar travel/viajar swim:swam:swum/nadar *yawn/bostezar *shout/gritar
person > person general: praise/elogiar help/ayudar assist/auxiliar criticize/criticar see:saw:seen/ver:ve:vio:visto
person > person general: visit/visitar follow/seguir:sigue:siguió call/llamar hug:hugged/abrazar greet/saludar
person > person general: protect/proteger defend/defender:defiende find:found/encontrar:encuentra ignore/ignorar
person > person general: invite/invitar admire/admirar recognize/reconocer blame/culpar *interview/entrevistar
person > person general: *rescue/rescatar *save/salvar *congratulate/felicitar *push/empujar
person > person sport: defeat/derrotar beat:beat:beaten/vencer train/entrenar challenge/desafiar:desafía
person > person science: examine/examinar cure/curar
person > person politics: accuse/acusar replace/reemplazar *arrest/arrestar
animal,bird > animal,bird general: chase/perseguir:persigue:persiguió bite:bit:bitten/morder:muerde watch/observar
animal,bird > animal,bird general: *scare/asustar
person > object,garment,instrument,vehicle,flower,text,gear,device general: buy:bought/comprar
person > object,garment,instrument,vehicle,flower,text,gear,device general: purchase/adquirir:adquiere
person > object,garment,instrument,vehicle,gear,device,holder general: lose:lost/perder:pierde
person > object,garment,instrument,gear,device,holder general: hide:hid:hidden/esconder steal:stole:stolen/robar
person > object,garment,gear,device general: choose:chose:chosen/elegir:elige:eligió select/escoger
person > object,garment,gear,device general: *grab:grabbed/agarrar
person > object,instrument,vehicle,device general: repair/reparar fix/arreglar break:broke:broken/romper:::roto
person > garment,vehicle,opening,holder general: wash/lavar paint/pintar *polish/pulir
person > text general: read:read/leer:lee:leyó:leído write:wrote:written/escribir:::escrito publish/publicar
person > text general: translate/traducir:traduce:tradujo
person > fruit,vegetable,dish food: eat:ate:eaten/comer prepare/preparar taste/probar:prueba serve/servir:sirve:sirvió
person > fruit,vegetable,dish food: cut:cut/cortar order/pedir:pide:pidió devour/devorar *burn/quemar
person > gear sport: throw:threw:thrown/lanzar kick/patear catch:caught/atrapar *toss/arrojar
person > contest sport: win:won/ganar organize/organizar play/jugar:juega attend/presenciar *cancel/cancelar
person > device,study science: study/estudiar analyze/analizar discover/descubrir:::descubierto
person > device science: invent/inventar build:built/construir:construye:construyó:construido *design/diseñar
person > measure politics: approve/aprobar:aprueba reject/rechazar support/apoyar sign/firmar *veto/vetar
person > speech politics: announce/anunciar finance/financiar *improve/mejorar
person > object,garment,flower,text,gear > person general: give:gave:given/dar:da:dio send:sent/enviar:envía
person > object,garment,flower,text,gear > person general: show:showed:shown/mostrar:muestra lend:lent/prestar
person > object,garment,flower,text,gear > person general: offer/ofrecer bring:brought/traer:trae:trajo:traído
person > object,garment,flower,text,gear > person general: *hand/entregar
person > fruit,vegetable,dish > person food: pass/pasar *deliver/repartir
person > work,text,dish,contest general: love/adorar hate/odiar enjoy/disfrutar recommend/recomendar:recomienda
person > work,text,dish,contest general: dislike/detestar regret:regretted/lamentar *despise/despreciar
person > work,text,dish,contest general: *treasure/apreciar
person > that general: say:said/decir:dice:dijo:dicho know:knew:known/saber:sabe:sabía believe/creer:cree:creía:creído
person > that general: think:thought/pensar:piensa remember/recordar:recuerda claim/afirmar *notice/notar
person > that general: *suspect/sospechar
"""

# kinds polarity: adjectives; "~" takes estar in Spanish
ADJECTIVES = """
person 0: tall/alto young/joven famous/famoso strong/fuerte rich/rico wealthy/adinerado brave/valiente honest/honesto
person 0: smart/listo intelligent/inteligente tired/cansado~ quiet/callado *polite/cortés *bald/calvo *clumsy/torpe
animal,bird 0: small/pequeño big/grande large/enorme hungry/hambriento~ white/blanco black/negro *wild/salvaje
object,garment,vehicle,instrument,gear,device,text,holder 0: new/nuevo old/viejo expensive/caro cheap/barato
object,garment,instrument,gear,device,holder 0: heavy/pesado light/ligero
object,garment,vehicle,instrument,gear,device,holder,flower 0: red/rojo blue/azul green/verde *yellow/amarillo
fruit,vegetable,dish 0: fresh/fresco sweet/dulce salty/salado *spicy/picante
contest,study,measure,speech 0: important/importante complex/complejo modern/moderno *urgent/urgente
place,landmark 0: ancient/antiguo huge/inmenso *remote/remoto
opening 0: open/abierto~ closed/cerrado~
holder 0: full/lleno~ empty/vacío~
garment,vehicle,holder 0: clean/limpio~ dirty/sucio~ wet/mojado~ dry/seco~
dish 0: hot/caliente~ cold/frío~
work,text,dish,contest,speech + : wonderful/maravilloso marvelous/estupendo excellent/excelente fantastic/fantástico
work,text,dish,contest,speech + : delightful/encantador perfect/perfecto good/bueno *superb/magnífico
work,text,dish,contest,speech + : *amazing/asombroso
work,text,dish,contest,speech - : terrible/terrible awful/horrible disappointing/decepcionante bad/malo
work,text,dish,contest,speech - : mediocre/mediocre
work,text,dish,contest,speech - : unpleasant/desagradable dreadful/espantoso *ridiculous/ridículo *absurd/absurdo
"""
OPPOSITES = "open closed, full empty, clean dirty, wet dry, hot cold, new old, expensive cheap, heavy light"

# comparatives, each with its opposite
COMPARATIVES = """
taller/más_alto shorter/más_bajo, older/mayor younger/menor, faster/más_rápido slower/más_lento,
stronger/más_fuerte weaker/más_débil, richer/más_rico poorer/más_pobre,
*happier/más_alegre *sadder/más_triste
"""

ADVERBS = """
manner: slowly/lentamente quickly/rápidamente quietly/silenciosamente carefully/cuidadosamente *calmly/tranquilamente
past: yesterday/ayer recently/recientemente *earlier/anteriormente
present: today/hoy now/ahora *nowadays/actualmente
often: always/siempre usually/normalmente often/frecuentemente *rarely/raramente
"""

# english/spanish
PREPOSITIONS = "in/en near/cerca_de behind/detrás_de beside/junto_a on/sobre under/debajo_de with/con from/de"
LINKS = """
and/y but/pero because/porque although/aunque when/cuando before/antes_de_que after/después_de_que
*whereas/mientras_que *since/ya_que
"""

SYNONYMS = """
lawyer attorney, coach trainer, cook chef, doctor physician, car automobile, story tale, film movie, painting picture,
gift present, help assist, defeat beat, buy purchase, choose select, repair fix, rich wealthy, smart intelligent,
big large, wonderful marvelous, terrible awful, hate dislike, rescue save, ridiculous absurd
"""
LIKED = "love enjoy recommend praise admire treasure"
LOATHED = "hate dislike regret criticize despise"
COMPANY_VERBS = """
buy purchase choose select publish build design announce finance organize invent support reject approve sign cancel
"""
FACTIVE = "know remember notice"
BELIEVED = "believe think claim suspect say"

IRREGULAR_PLURALS = {
    "woman": "women",
    "man": "men",
    "mouse": "mice",
    "wolf": "wolves",
    "fisherman": "fishermen",
    "shelf": "shelves",
    "scarf": "scarves",
    "chef": "chefs",
    "robot": "robots",
    "hypothesis": "hypotheses",
    "joven": "jóvenes",
    "hipótesis": "hipótesis",
}
