// Who a rank says it is, and whether such ranks can share memory.
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "check.h"
#include "cpu/exchange.h"
#include "cpu/rendezvous.h"

namespace llcoll::exchange {
namespace {

template <size_t size>
std::string text_of(const std::array<char, size>& chars) {
  return {chars.data(), strnlen(chars.data(), size)};
}

template <size_t size>
void set_text(std::array<char, size>& chars, const std::string& text) {
  text.copy(chars.data(), size - 1);
}

Random draw_random() {
  Random random{};
  ssize_t count;
  do {
    count = getrandom(random.data(), random.size(), 0);
  } while (count < 0 && errno == EINTR);
  check_errno(count == static_cast<ssize_t>(random.size()), "getrandom gave ", count, " of ", random.size(), " bytes");
  return random;
}

uint64_t namespace_inode(const char* name) {
  struct stat info {};
  check_errno(stat(concat("/proc/self/ns/", name).c_str(), &info) == 0, "cannot stat /proc/self/ns/", name);
  return info.st_ino;
}

}  // namespace

Announcement announce(int rank, int world_size, size_t segment_bytes) {
  Announcement mine;
  mine.rank = rank;
  mine.world_size = world_size;
  mine.pid = getpid();
  mine.uid = geteuid();
  mine.segment_bytes = segment_bytes;
  mine.network_namespace = namespace_inode("net");
  mine.user_namespace = namespace_inode("user");
  mine.pid_namespace = namespace_inode("pid");
  mine.socket_name = draw_random();
  mine.token = draw_random();
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  check_that(!boot_id.empty(), "cannot read /proc/sys/kernel/random/boot_id, which tells hosts apart");
  set_text(mine.boot_id, boot_id);
  struct utsname names {};
  if (uname(&names) == 0) set_text(mine.host_name, names.nodename);
  return mine;
}

std::vector<Announcement> parse_announcements(const std::vector<std::string>& all) {
  std::vector<Announcement> parsed(all.size());
  std::map<std::string, std::vector<int>> ranks_by_host, ranks_by_user;
  for (size_t peer = 0; peer < all.size(); ++peer) {
    Announcement& one = parsed[peer];
    check_that(all[peer].size() == sizeof one, "rank ", peer, " announced ", all[peer].size(), " bytes instead of ",
               sizeof one, ": do all ranks run the same llcoll?");
    std::memcpy(&one, all[peer].data(), sizeof one);
    check_that(one.magic == kMagic, "rank ", peer, " announced protocol ", one.magic, " instead of ", kMagic,
               ": do all ranks run the same llcoll?");
    check_that(one.rank == static_cast<int>(peer) && one.world_size == static_cast<int>(all.size()), "rank ", peer,
               " of ", all.size(), " believes to be rank ", one.rank, " of ", one.world_size);
    check_that(one.segment_bytes > 0, "rank ", peer, " announced a segment of 0 bytes");
    ranks_by_host[concat("host '", text_of(one.host_name), "' (boot ", text_of(one.boot_id), ", network namespace ",
                         one.network_namespace, ", user namespace ", one.user_namespace, ")")]
        .push_back(one.rank);
    ranks_by_user[concat("user id ", one.uid)].push_back(one.rank);
  }
  const auto check_one = [](const char* what, const std::map<std::string, std::vector<int>>& ranks_by) {
    std::string text;
    for (const auto& [name, ranks] : ranks_by) text += concat(text.empty() ? "" : "; ", rank_list(ranks), " on ", name);
    check_that(ranks_by.size() == 1, "the CPU backend shares memory, so all ranks must be of one ", what, ": ", text);
  };
  check_one("host and namespace", ranks_by_host);
  check_one("user", ranks_by_user);
  return parsed;
}

}  // namespace llcoll::exchange
