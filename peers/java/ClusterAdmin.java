import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/**
 * Changes a little of everything that a cluster's metadata holds, then prints one JSON object: what the cluster says
 * about all of it. Needs a broker 1, a registered broker 2 (which may be fenced), and an authorizer.
 *
 * Usage: java -cp "JARS/*" ClusterAdmin.java BOOTSTRAP
 */
public class ClusterAdmin {
    private static final ConfigResource ORDERS = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
    private static final ConfigResource ALL_BROKERS = new ConfigResource(ConfigResource.Type.BROKER, "");
    private static final ConfigResource BROKER = new ConfigResource(ConfigResource.Type.BROKER, "1");
    private final Admin admin;

    private ClusterAdmin(Admin admin) {
        this.admin = admin;
    }

    public static void main(String[] args) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            ClusterAdmin cluster = new ClusterAdmin(admin);
            cluster.changeTopics();
            cluster.changeSettings();
            cluster.changeUsers();
            System.out.println(new ObjectMapper().writeValueAsString(cluster.describe()));
        }
    }

    private void changeTopics() throws Exception {
        admin.createTopics(List.of(
            new NewTopic("orders", 3, (short) 1).configs(Map.of("cleanup.policy", "compact", "retention.ms", "1000")),
            new NewTopic("moved", 2, (short) 1), new NewTopic("gone", 1, (short) 1).configs(Map.of("retention.ms", "5"))
        )).all().get();
        admin.createPartitions(Map.of("orders", NewPartitions.increaseTo(4))).all().get();
        admin.deleteTopics(List.of("gone")).all().get();
        admin.createTopics(List.of(new NewTopic("gone", 2, (short) 1))).all().get();
        admin.alterPartitionReassignments(Map.of(
            new TopicPartition("moved", 0), Optional.of(new NewPartitionReassignment(List.of(2, 1)))
        )).all().get();
        // A producer id, and the topic of the transaction coordinator.
        admin.fenceProducers(List.of("nobody")).all().get();
    }

    private void changeSettings() throws Exception {
        admin.incrementalAlterConfigs(Map.of(
            ORDERS, List.of(set("segment.bytes", "2000000"), new AlterConfigOp(new ConfigEntry("retention.ms", ""), OpType.DELETE)),
            ALL_BROKERS, List.of(set("message.max.bytes", "2000000")),
            BROKER, List.of(set("log.cleaner.threads", "2"))
        )).all().get();
        ClientQuotaEntity ann = new ClientQuotaEntity(Map.of("user", "ann"));
        Map<String, String> anyClient = new TreeMap<>(Map.of("user", "ann"));
        anyClient.put("client-id", null);
        admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(ann, List.of(
                new ClientQuotaAlteration.Op("producer_byte_rate", 1024.0), new ClientQuotaAlteration.Op("request_percentage", 12.5))),
            new ClientQuotaAlteration(new ClientQuotaEntity(anyClient), List.of(new ClientQuotaAlteration.Op("consumer_byte_rate", 7.0)))
        )).all().get();
        admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(ann, List.of(new ClientQuotaAlteration.Op("producer_byte_rate", null)))
        )).all().get();
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), OpType.SET);
    }

    private void changeUsers() throws Exception {
        ScramCredentialInfo weak = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        ScramCredentialInfo strong = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192);
        admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion("ann", weak, "secret"), new UserScramCredentialUpsertion("bob", weak, "secret")
        )).all().get();
        admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion("ann", strong, "secret"), new UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)
        )).all().get();
        AclBinding removed = acl(ResourceType.GROUP, "g", PatternType.LITERAL, AclOperation.READ, AclPermissionType.DENY);
        admin.createAcls(List.of(
            acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, AclOperation.WRITE, AclPermissionType.ALLOW),
            acl(ResourceType.TOPIC, "or", PatternType.PREFIXED, AclOperation.READ, AclPermissionType.DENY), removed
        )).all().get();
        admin.deleteAcls(List.of(removed.toFilter())).all().get();
    }

    private static AclBinding acl(ResourceType type, String name, PatternType pattern, AclOperation operation, AclPermissionType permission) {
        return new AclBinding(new ResourcePattern(type, name, pattern), new AccessControlEntry("User:ann", "*", operation, permission));
    }

    private Map<String, Object> describe() throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("topics", topics());
        found.put("settings", settings());
        found.put("features", admin.describeFeatures().featureMetadata().get().finalizedFeatures().entrySet().stream()
            .collect(TreeMap::new, (levels, entry) -> levels.put(entry.getKey(), entry.getValue().maxVersionLevel()), TreeMap::putAll));
        found.put("brokers", brokers());
        found.put("voters", admin.describeMetadataQuorum().quorumInfo().get().voters().stream().map(each -> each.replicaId()).toList());
        found.put("quotas", quotas());
        found.put("users", users());
        found.put("acls", acls());
        return found;
    }

    private Map<String, Object> topics() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (TopicDescription topic : admin.describeTopics(admin.listTopics(
                new org.apache.kafka.clients.admin.ListTopicsOptions().listInternal(true)).names().get()).allTopicNames().get().values()) {
            List<Object> partitions = new ArrayList<>();
            for (TopicPartitionInfo each : topic.partitions()) {
                TopicPartition partition = new TopicPartition(topic.name(), each.partition());
                Map<String, Object> shown = new LinkedHashMap<>();
                shown.put("leader", each.leader() == null ? -1 : each.leader().id());
                shown.put("replicas", ids(each.replicas()));
                shown.put("isr", ids(each.isr()));
                shown.put("elr", ids(each.elr()));
                shown.put("last_known_elr", ids(each.lastKnownElr()));
                var reassignment = admin.listPartitionReassignments(java.util.Set.of(partition)).reassignments().get().get(partition);
                shown.put("adding", reassignment == null ? List.of() : reassignment.addingReplicas());
                shown.put("removing", reassignment == null ? List.of() : reassignment.removingReplicas());
                partitions.add(shown);
            }
            found.put(topic.name(), Map.of("id", topic.topicId().toString(), "partitions", partitions));
        }
        return found;
    }

    private static List<Integer> ids(Collection<Node> nodes) {
        return nodes == null ? List.of() : nodes.stream().map(Node::id).toList();
    }

    private Map<String, Object> settings() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        List<ConfigResource> resources = new ArrayList<>(List.of(ALL_BROKERS, BROKER));
        for (String topic : List.of("orders", "moved", "gone")) {
            resources.add(new ConfigResource(ConfigResource.Type.TOPIC, topic));
        }
        for (var each : admin.describeConfigs(resources).all().get().entrySet()) {
            ConfigEntry.ConfigSource own = switch (each.getKey().type()) {
                case TOPIC -> ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG;
                default -> each.getKey().isDefault()
                    ? ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG : ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG;
            };
            Map<String, String> set = new TreeMap<>();
            each.getValue().entries().stream().filter(entry -> entry.source() == own).forEach(entry -> set.put(entry.name(), entry.value()));
            found.put(each.getKey().type().id() + ":" + each.getKey().name(), set);
        }
        return found;
    }

    private Map<String, Object> brokers() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (Node node : admin.describeCluster(new DescribeClusterOptions().includeFencedBrokers(true)).nodes().get()) {
            Map<String, Object> shown = new LinkedHashMap<>();
            shown.put("address", node.host() + ":" + node.port());
            shown.put("rack", node.rack());
            shown.put("fenced", node.isFenced());
            found.put(Integer.toString(node.id()), shown);
        }
        return found;
    }

    private List<Object> quotas() throws Exception {
        List<Object> found = new ArrayList<>();
        for (var each : admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().entrySet()) {
            found.add(List.of(each.getKey().entries(), each.getValue()));
        }
        return found;
    }

    private List<Object> users() throws Exception {
        List<Object> found = new ArrayList<>();
        for (var user : admin.describeUserScramCredentials().all().get().values()) {
            for (ScramCredentialInfo each : user.credentialInfos()) {
                found.add(List.of(user.name(), (int) each.mechanism().type(), each.iterations()));
            }
        }
        return found;
    }

    private List<Object> acls() throws Exception {
        List<Object> found = new ArrayList<>();
        for (AclBinding each : admin.describeAcls(AclBindingFilter.ANY).values().get()) {
            found.add(List.of((int) each.pattern().resourceType().code(), each.pattern().name(), (int) each.pattern().patternType().code(),
                each.entry().principal(), each.entry().host(), (int) each.entry().operation().code(), (int) each.entry().permissionType().code()));
        }
        return found;
    }
}
