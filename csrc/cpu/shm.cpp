#include "cpu/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "check.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace llcoll {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kReserveStepBytes = size_t{16} << 20;
constexpr size_t kMaxSegmentBytes = size_t{1} << 46;

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  return file >> value ? std::optional(value) : std::nullopt;  // "max" is no number: no limit
}

// The value after `key` in a file of "key value" lines, 0 if absent.
uint64_t read_field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    uint64_t value;
    if (words >> word && word == key && words >> value) return value;
  }
  return 0;
}

struct Room {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  std::string source = "no known limit";

  void limit(uint64_t available, const std::string& where) {
    if (available >= bytes) return;
    bytes = available;
    source = where;
  }
};

// One cgroup directory: what its limit leaves, counting its page cache as free.
void limit_by_cgroup(Room& room, const std::string& dir, const char* limit_file, const char* usage_file,
                     const char* stat_prefix) {
  const auto limit = read_number(dir + "/" + limit_file);
  const auto usage = read_number(dir + "/" + usage_file);
  if (!limit || !usage) return;
  const std::string stat = dir + "/memory.stat", prefix = stat_prefix;
  const uint64_t cache = read_field(stat, prefix + "inactive_file") + read_field(stat, prefix + "active_file");
  const uint64_t used = *usage > cache ? *usage - cache : 0;
  room.limit(*limit > used ? *limit - used : 0, concat("cgroup limit of ", *limit, " bytes in ", dir));
}

// What the machine and each cgroup around this process have left. In a container the path that the kernel names may
// not exist: then only the directories that do, up to the mount's root, count.
Room memory_room() {
  Room room;
  if (const uint64_t kib = read_field("/proc/meminfo", "MemAvailable:")) {
    room.limit((kib + read_field("/proc/meminfo", "SwapFree:")) * 1024, "MemAvailable and SwapFree of /proc/meminfo");
  }
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    if (!is_v2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::string mount = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::string path = line.substr(second + 1);;) {
      if (is_v2) {
        limit_by_cgroup(room, mount + path, "memory.max", "memory.current", "");
      } else {
        limit_by_cgroup(room, mount + path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
      }
      const size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return room;
}

// Asked first, because the kernel answers a request beyond the limits with the OOM killer, not with an error.
void check_room(size_t bytes, int num_segments) {
  const Room room = memory_room();
  check_that(bytes <= room.bytes / static_cast<uint64_t>(num_segments), "too little memory for ", num_segments,
             num_segments == 1 ? " segment of " : " segments of ", bytes, " bytes: ", room.bytes, " bytes are left (",
             room.source, "); a smaller scratch (LLCOLL_SCRATCH_BYTES) may fit");
}

Fd make_memfd() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd fd(memfd_create("llcoll", flags | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd = Fd(memfd_create("llcoll", flags));  // before Linux 6.3
  check_errno(bool(fd), "memfd_create failed");
  check_errno(fchmod(fd.get(), S_IRUSR | S_IWUSR) == 0, "fchmod of a memfd failed");
  return fd;
}

// fallocate in steps: a signal undoes the step that it interrupts, so one large step might never end.
void reserve(int fd, size_t bytes) {
  for (size_t offset = 0; offset < bytes;) {
    const size_t step = std::min(kReserveStepBytes, bytes - offset);
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(step)) == 0) {
      offset += step;
      continue;
    }
    check_errno(errno == EINTR, "cannot reserve ", bytes, " bytes of shared memory (", offset, " were reserved)");
  }
}

std::byte* map_shared(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  check_errno(data != MAP_FAILED, "cannot map ", bytes, " bytes of shared memory");
  return static_cast<std::byte*>(data);
}

// Page tables now rather than in the first collective. Reads only where the kernel is too old: a peer may be writing.
void prefault(std::byte* data, size_t bytes) {
  int rc;
  do {
    rc = madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (rc != 0 && errno == EINTR);
  if (rc == 0) return;
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t offset = 0; offset < bytes; offset += page_bytes) {
    static_cast<void>(*static_cast<volatile std::byte*>(data + offset));
  }
}

void check_bytes(size_t bytes) {
  check_that(bytes > 0 && bytes <= kMaxSegmentBytes, "a segment of ", bytes, " bytes (allowed: 1 to ", kMaxSegmentBytes,
             ")");
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));  // never retried: Linux frees the number even on EINTR
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      owns_mapping_(std::exchange(other.owns_mapping_, false)),
      fd_(std::move(other.fd_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  owns_mapping_ = std::exchange(other.owns_mapping_, false);
  fd_ = Fd(std::move(other.fd_));
  return *this;
}

Segment::~Segment() { unmap(); }

void Segment::unmap() noexcept {
  if (owns_mapping_) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  owns_mapping_ = false;
  fd_.reset();
}

Segment Segment::create(size_t bytes, int num_segments) {
  check_bytes(bytes);
  check_that(num_segments >= 1 && num_segments <= kMaxWorldSize, "num_segments is ", num_segments, " (allowed: 1 to ",
             kMaxWorldSize, ")");
  check_room(bytes, num_segments);
  Segment segment;
  segment.fd_ = make_memfd();
  const int fd = segment.fd();
  check_errno(ftruncate(fd, static_cast<off_t>(bytes)) == 0, "cannot size a memfd to ", bytes, " bytes");
  check_errno(fcntl(fd, F_ADD_SEALS, kSeals) == 0, "cannot seal a memfd");
  segment.data_ = map_shared(fd, bytes);
  segment.bytes_ = bytes;
  segment.owns_mapping_ = true;
  if (bytes >= kHugePageBytes) {
    // Only a mapping can ask for huge pages, so fault through it first; fallocate then finds the pages present, and
    // is the one that reports what is missing.
    madvise(segment.data_, bytes, MADV_HUGEPAGE);
    static_cast<void>(madvise(segment.data_, bytes, MADV_POPULATE_WRITE));
  }
  reserve(fd, bytes);
  prefault(segment.data_, bytes);
  return segment;
}

Segment Segment::map_fd(int fd, size_t bytes, uid_t owner) {
  check_bytes(bytes);
  const int seals = fcntl(fd, F_GET_SEALS);  // fails on anything but a memfd
  check_that(seals >= 0 && (seals & kSeals) == kSeals && (seals & F_SEAL_WRITE) == 0,
             "a peer's descriptor is not a sealed segment: seals ", seals, ", wanted ", kSeals);
  struct stat info {};
  check_errno(fstat(fd, &info) == 0, "fstat of a peer's segment failed");
  check_that(S_ISREG(info.st_mode) && info.st_uid == owner && (info.st_mode & 077) == 0, "a peer's segment has owner ",
             info.st_uid, " and mode ", info.st_mode, " (decimal); wanted owner ", owner, " and no rights for others");
  check_that(info.st_size >= 0 && static_cast<uint64_t>(info.st_size) == bytes, "a peer's segment has ", info.st_size,
             " bytes, announced were ", bytes);
  Segment segment;
  segment.data_ = map_shared(fd, bytes);
  segment.bytes_ = bytes;
  segment.owns_mapping_ = true;
  prefault(segment.data_, bytes);
  return segment;
}

Segment Segment::view() const {
  Segment segment;
  segment.data_ = data_;
  segment.bytes_ = bytes_;
  return segment;
}

}  // namespace llcoll
