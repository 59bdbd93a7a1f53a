// All-reduce with a norm behind it: the push protocols' phase loops, a whole row for each CTA at a time, whose sums
// stay in registers from the receive to the output. A row may take several epochs (one-shot), never less than one.
#pragma once

#include "cuda/cta.cuh"
#include "cuda/norm.cuh"
#include "llcoll/one_shot.h"

namespace llcoll {

// One CTA per SM is what the communicator lets be resident; the registers are for the row.
template <template <class> class ProtocolOf, class Type, int ranks, int items, bool once>
__global__ void __launch_bounds__(kMaxThreads, 1) fused_one_shot_kernel(const __grid_constant__ FusedArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // by every thread: see launch.cuh
#endif
  using Protocol = ProtocolOf<DeviceMemory>;
  using Unit = typename Protocol::Unit;
  DeviceMemory mem{args.base.wait};
  const auto group = make_cta<once>(args.base.order);
  const Scratch& scratch = args.base.scratch;
  const Message& message = args.base.message;
  const NormArgs& norm = args.norm;
  const uint32_t upr = norm.units_per_row;
  RowBoard<items> board;
  Unit kept[items]{};      // this rank's own units, then the row
  Unit residual[items]{};  // of the epoch's units
  // f(item, unit in the row) for this thread's units in [from, from + count) of a row.
  auto each = [&](uint32_t from, uint32_t count, auto&& f) {
    LLC_UNROLL
    for (int k = 0; k < items; ++k) {
      const uint32_t u = k * group.size + group.rank;
      if (u >= from && u < from + count) f(k, u);
    }
  };
  auto start_of = [&](uint32_t begin) { return once ? 0 : begin % upr; };
  run_epochs<Protocol, Type>(
      mem, group, scratch, args.base.plan, push_regions(1, ranks),
      [&](uint32_t begin, uint32_t count) {
        const uint32_t from = start_of(begin);
        each(from, count, [&](int k, uint32_t u) { kept[k] = message.template read<Unit>(mem, begin - from + u); });
      },
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        const uint32_t from = start_of(begin);
        each(from, count, [&](int k, uint32_t u) { stage.bcast(0, u - from, kept[k], ranks); });
        stage.flush(0);
        each(from, count,
             [&](int k, uint32_t u) { residual[k] = norm.residual.template read<Unit>(mem, begin - from + u); });
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool) {
        const uint32_t from = start_of(begin);
        bool arrived = stage.ready(0);
        each(from, count, [&](int k, uint32_t u) {
          Unit sum{};
          if (arrived) {
            arrived = receive_reduce<Type, ranks>(mem, stage, 0, u - from, kept[k], SumOp{}, true, sum);
          }
          kept[k] = add_units<Type>(sum, residual[k]);
          if (arrived) norm.residual.write(mem, begin - from + u, kept[k]);
        });
        // A thread that failed goes on to the barriers: the others may be there.
        const uint32_t row = (begin - from) / upr;
        if (from + count == upr && row < norm.num_rows) finish_row<Type>(mem, group, norm, row, kept, board);
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) poison_unit<Type, Unit>(mem, norm, begin + i);
      });
}

// Rank p sums the rows of part p and broadcasts the sums; every rank adds its residual and normalises all rows itself.
// One epoch per row.
template <template <class> class ProtocolOf, class Type, int ranks, int items>
__global__ void __launch_bounds__(kMaxThreads, 1) fused_two_shot_kernel(const __grid_constant__ FusedArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  using Protocol = ProtocolOf<DeviceMemory>;
  using Unit = typename Protocol::Unit;
  DeviceMemory mem{args.base.wait};
  const auto group = make_cta<false>(args.base.order);
  const Scratch& scratch = args.base.scratch;
  const Message& message = args.base.message;
  const NormArgs& norm = args.norm;
  const uint32_t part = args.base.plan.part;
  const int rank = scratch.rank;
  RowBoard<items> board;
  auto each = [&](uint32_t count, auto&& f) {
    LLC_UNROLL
    for (int k = 0; k < items; ++k) {
      const uint32_t u = k * group.size + group.rank;
      if (u < count) f(k, u);
    }
  };
  auto finish = [&](uint32_t begin, uint32_t count, Unit(&sums)[items], bool arrived) {
    each(count, [&](int k, uint32_t u) {
      sums[k] = add_units<Type>(sums[k], norm.residual.template read<Unit>(mem, begin + u));
      if (arrived) norm.residual.write(mem, begin + u, sums[k]);
    });
    const uint32_t row = begin / norm.units_per_row;
    if (row < norm.num_rows) finish_row<Type>(mem, group, norm, row, sums, board);
  };
  run_epochs<Protocol, Type>(
      mem, group, scratch, args.base.plan, push_regions(2, ranks), [](uint32_t, uint32_t) {},
      [&](const auto& stage, uint32_t begin, uint32_t count) {
        each(count, [&](int, uint32_t u) {
          LLC_UNROLL
          for (int peer = 0; peer < ranks; ++peer) {
            if (peer == rank) continue;
            stage.send(0, peer, u, message.template read<Unit>(mem, peer * part + begin + u));
          }
        });
        stage.flush(0);
      },
      [&](const auto& stage, uint32_t begin, uint32_t count, bool) {
        bool arrived = stage.ready(0);
        Unit sums[items]{};
        each(count, [&](int k, uint32_t u) {
          if (!arrived) return;
          const Unit own = message.template read<Unit>(mem, rank * part + begin + u);
          arrived = receive_reduce<Type, ranks>(mem, stage, 0, u, own, SumOp{}, false, sums[k]);
          if (arrived) stage.bcast(1, u, sums[k], ranks);
        });
        stage.flush(1);
        // Own row first: the others' sums travel meanwhile. A thread that failed goes on to the barriers.
        finish(rank * part + begin, count, sums, arrived);
        if (arrived) arrived = stage.ready(1);
        for (int source = 0; source < ranks; ++source) {
          if (source == rank) continue;
          each(count, [&](int k, uint32_t u) {
            sums[k] = Unit{};
            if (!arrived) return;
            arrived = wait_until(
                mem, stage.epoch, [&] { return stage.try_recv_shared(1, source, u, sums[k]); }, [&] { return source; });
          });
          finish(source * part + begin, count, sums, arrived);
        }
        return arrived;
      },
      [&](uint32_t begin, uint32_t count) {
        for (uint32_t i = group.rank; i < count; i += group.size) {
          for (int p = 0; p < ranks; ++p) poison_unit<Type, Unit>(mem, norm, p * part + begin + i);
        }
      });
}

template <template <class> class ProtocolOf, class Type, int ranks>
FusedKernel find_fused_one_shot_items(const FusedKey& key) {
  if (key.items == 1 && key.once) return fused_one_shot_kernel<ProtocolOf, Type, ranks, 1, true>;
  if (key.once) return fused_one_shot_kernel<ProtocolOf, Type, ranks, kMaxItems, true>;
  return fused_one_shot_kernel<ProtocolOf, Type, ranks, kMaxItems, false>;
}
template <template <class> class ProtocolOf, class Type, int ranks>
FusedKernel find_fused_two_shot_items(const FusedKey&) {
  return fused_two_shot_kernel<ProtocolOf, Type, ranks, kMaxItems>;
}

// find(integral constant of ranks, type) over the rows that exist.
template <class Find>
FusedKernel find_fused(const FusedKey& key, Find&& find) {
  auto by_ranks = [&](auto type) -> FusedKernel {
    switch (key.num_ranks) {
      case 2:
        return find(type, std::integral_constant<int, 2>{});
      case 4:
        return find(type, std::integral_constant<int, 4>{});
      case 8:
        return find(type, std::integral_constant<int, 8>{});
      default:
        return nullptr;
    }
  };
  if (key.items > kMaxItems) return nullptr;
  switch (key.dtype) {
    case DType::kFloat32:
      return by_ranks(Float32{});
    case DType::kFloat16:
      return by_ranks(Float16{});
    case DType::kBFloat16:
      return by_ranks(BFloat16{});
    default:
      return nullptr;
  }
}

}  // namespace llcoll
