// Schedules on the command line: by name, by search, by hand, and shown.

// A timeline as text is a schedule that can be read again.
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule zb-h1 --emit=schedule -o %t.sched --report=%t.json
// RUN: FileCheck %s --check-prefix=TEXT --input-file %t.sched
// RUN: FileCheck %s --check-prefix=REPORT --input-file %t.json
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule-file %t.sched --emit=schedule | grep -v '^#' > %t.again
// RUN: grep -v '^#' %t.sched | diff - %t.again
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule zb-h1 --emit=scheduled | grep -v schedule_name > %t.named
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule-file %t.sched --emit=scheduled | grep -v schedule_name | diff %t.named -

// TEXT: # train, zb-h1, 4 micro-batches
// TEXT-NEXT: F0 {{.*}}F0>1{{.*}}I0{{.*}}W0{{.*}}U
// TEXT-NEXT: 1<F0 {{.*}}1F0{{.*}}1I0 1I0>0{{.*}}1U
// TEXT-NEXT: #
// TEXT-NEXT: # predicted, {{[0-9.]+}} us
// TEXT-NEXT: # position 0 |F0
// TEXT-NEXT: # position 1 |
// TEXT-NEXT: #{{ +}}0 {{.*}} us
// TEXT-NEXT: # F forward, B backward, I input gradient, W weight gradient, U update, G gather, R reduction, p other, - idle during a transfer, . idle
// TEXT: # schedule zb-h1: 2 pipeline positions, 4 micro-batches; predicted {{.*}} us, of which {{.*}} % are the bubble
// TEXT: # stage 0 from w at schedule.mlir:{{[0-9]+}}: {{.*}} % of the cost, parameters of 1.0 KiB
// TEXT: # stage 0 to stage 1: 128 B for each micro-batch, 516 B in a step

// REPORT-DAG: "name": "zb-h1"
// REPORT-DAG: "elements_per_micro_batch": 32
// REPORT-DAG: "bytes_per_step": 516
// REPORT-DAG: "micro_batches": 4
// REPORT-DAG: "period":
// REPORT-DAG: "peak_in_flight": 2

// The end of a name chooses the form, unless it is named.
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule -o %t.svg
// RUN: FileCheck %s --check-prefix=SVG --input-file %t.svg
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule -o %t.trace.json
// RUN: %python -m json.tool %t.trace.json | FileCheck %s --check-prefix=TRACE
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule --schedule-format=perfetto -o - | diff - %t.trace.json
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule --measured-timeline=%t.trace.json | FileCheck %s --check-prefix=BOTH
// RUN: cleave-compile %s --micro-batches 2 --emit=schedule | FileCheck %s --check-prefix=ONE
// SVG: <svg xmlns="http://www.w3.org/2000/svg"
// SVG: train, 1f1b, 4 micro-batches
// SVG: position 1: stage 1
// SVG: </svg>
// TRACE: "cat": "forward"
// BOTH: # predicted,
// BOTH: # measured,
// BOTH: # position 1 |
// BOTH: # idle, predicted: [[A:[0-9.]+ %]] at position 0, [[B:[0-9.]+ %]] at position 1
// BOTH-NEXT: # idle, measured: [[A]] at position 0, [[B]] at position 1
// ONE: # train, one device, 2 micro-batches
// ONE-NEXT: {2+1: F0 B0} U

// A run that was measured, for which a prediction stands here, costs what it
// took; its costs are those of whole backwards.
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule --measured-costs=%t.trace.json | FileCheck %s --check-prefix=COSTS
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule | grep predicted > %t.estimated
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --emit=schedule --measured-costs=%t.trace.json | grep predicted | diff %t.estimated -
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 2 --schedule gpipe --emit=schedule --measured-costs=%t.trace.json | FileCheck %s --check-prefix=COSTS
// RUN: not cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule zb-h1 --emit=schedule --measured-costs=%t.trace.json 2>&1 | FileCheck %s --check-prefix=WHOLE
// RUN: not cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule interleaved --emit=scheduled --measured-costs=%t.trace.json 2>&1 | FileCheck %s --check-prefix=STAGES
// COSTS: # costs: measured, {{.*}}.trace.json
// COSTS-NEXT: # idle, predicted: {{.*}} % at position 0, {{.*}} % at position 1
// WHOLE: error: 'pipe.program' op measured costs of {{.*}}.trace.json: the measurement lacks 1I, 1W, W; measure a run with the same settings, whose schedule has the same parts
// STAGES: error: 'pipe.program' op measured costs of {{.*}}.trace.json: the measurement has 2 stages, and the program has 4; measure a run with the same mesh, chunks and stages

// What is fastest is found; within a limit, with less saved.
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule auto --emit=schedule | FileCheck %s --check-prefix=AUTO
// RUN: cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule auto --max-saved-bytes=0.0003MiB --emit=schedule | FileCheck %s --check-prefix=LITTLE
// RUN: not cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule auto --max-saved-bytes=0.0002MiB --emit=schedule 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: not cleave-compile %s --mesh pp=2 --micro-batches 4 --schedule gpipe --max-saved-bytes=0.0003MiB --emit=schedule 2>&1 | FileCheck %s --check-prefix=OVER
// AUTO: # train, auto, 4 micro-batches
// LITTLE: # position 0: {{.*}} saves at most 2 micro-batches, 256 B
// LITTLE: # position 1: {{.*}} saves at most 1 micro-batch, 256 B
// NOTHING: error: 'pipe.program' op schedule: no order was found that keeps the limit; raise the limit, or write an order by hand{{$}}
// OVER: error: 'pipe.program' op schedule: F2 at pipeline position 0 raises the amount saved to {{.*}}, over the limit of 314 bytes (0.0003 MiB); raise the limit, or choose a schedule that saves less, such as v-half, v-min or auto

// RUN: cleave-compile --schedule=help | FileCheck %s --check-prefix=LIST
// RUN: not cleave-compile %s --mesh pp=2 --schedule=2f2b --emit=schedule 2>&1 | FileCheck %s --check-prefix=NAMES
// RUN: not cleave-compile %s --mesh pp=2 --virtual-stages 0 --emit=schedule 2>&1 | FileCheck %s --check-prefix=CHUNKS
// CHUNKS: --virtual-stages must be positive, not 0
// LIST: zb-v{{ +}}2{{ +}}two chunks at each position
// LIST: pipedream {{.*}}an update after each backward
// LIST: auto
// NAMES: --schedule: unknown schedule '2f2b'; write one of gpipe, 1f1b, {{.*}}, or auto

func.func @loss(%w: tensor<16x16xf32> {graph.name = "w", graph.role = "parameter"},
                %v: tensor<16x16xf32> {graph.name = "v", graph.role = "parameter"},
                %x: tensor<8x16xf32> {graph.name = "x", graph.role = "input", graph.batch_dim = 0 : i64})
    -> (tensor<f32> {graph.name = "loss"}) {
  %h = graph.contract "bi,oi->bo" %x, %w : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %t = graph.tanh %h : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %k = graph.contract "bi,oi->bo" %t, %v : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %q = graph.mul %k, %k : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %loss = graph.reduce sum %q {dims = array<i64: 0, 1>} : (tensor<8x16xf32>) -> tensor<f32>
  return %loss : tensor<f32>
}
